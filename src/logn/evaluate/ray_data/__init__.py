"""Ray Data as the engine past one machine: images of a lake in; statistics or a prediction store out."""

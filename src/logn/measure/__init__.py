"""How good are detections and classes, and which of several corrections is better?"""

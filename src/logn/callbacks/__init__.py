"""What a training framework calls at the end of a training, to leave a corrected model beside the best one."""

"""What the noisy primitives of an aggregate are worth: values, intervals, errors."""

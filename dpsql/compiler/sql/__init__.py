"""SQL text into statements; constants as typed values."""

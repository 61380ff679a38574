"""Commands that compare and count: runs side by side, time, money, memory."""

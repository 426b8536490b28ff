"""Token mixers: softmax attention, and linear mixers whose state does not grow."""

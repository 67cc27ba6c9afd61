"""What each layer of a model computes, keeps and sends, measured without its weights."""

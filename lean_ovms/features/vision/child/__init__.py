"""Images of prompts: how the families read them, their encoder's thread, and their place in prompts and the network."""

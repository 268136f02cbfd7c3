"""Networks that others have made: from timm, from transformers, and one that a package carries with its weights."""

"""Makes the small model that ships in `lean_ovms/demo_model/`: corpus, tokenizer, training, export, evaluation.

Nothing in `lean_ovms` imports this package and it is not part of the wheel. Start at `__main__`, which lists the steps.
"""

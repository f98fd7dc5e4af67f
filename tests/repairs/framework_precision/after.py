# framework_precision(value="bf16")
trainer = Trainer(precision="bf16-mixed")
accelerator = Accelerator(mixed_precision="bf16")
arguments = TrainingArguments("out", bf16=True)

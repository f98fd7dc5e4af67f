# framework_precision(value="bf16")
trainer = Trainer(precision="16-mixed")
accelerator = Accelerator(mixed_precision="fp16")
arguments = TrainingArguments("out", fp16=True)

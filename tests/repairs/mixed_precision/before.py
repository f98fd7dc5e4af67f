# mixed_precision()
trainer = Trainer(max_epochs=3, precision="bf16-true")
trainer.fit(model)  # here

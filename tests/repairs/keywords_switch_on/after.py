# switch_on(name="autocast_adapter_dtype", anywhere=False)
model = get_peft_model(base, config, autocast_adapter_dtype=True)  # here

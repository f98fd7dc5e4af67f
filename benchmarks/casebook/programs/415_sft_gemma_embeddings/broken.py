import torch
from datasets import Dataset
from peft import LoraConfig
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import GemmaConfig, GemmaForCausalLM, PreTrainedTokenizerFast
from trl import SFTConfig, SFTTrainer

torch.manual_seed(0)
words = ["<pad>", "<eos>", "<bos>"] + [f"w{i}" for i in range(30)]
raw = Tokenizer(models.WordLevel({w: i for i, w in enumerate(words)}, unk_token="<pad>"))
raw.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
tok = PreTrainedTokenizerFast(tokenizer_object=raw, pad_token="<pad>", eos_token="<eos>", bos_token="<bos>")
texts = [" ".join(f"w{(s + j) % 30}" for j in range(10)) for s in torch.randint(0, 30, (200,)).tolist()]
cfg = GemmaConfig(
    vocab_size=len(words), hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2,
    num_key_value_heads=1, head_dim=16, max_position_embeddings=32, pad_token_id=0, eos_token_id=1, bos_token_id=2,
)
model = GemmaForCausalLM(cfg)
with torch.no_grad():  # the released weights have residuals of this size; they were trained in bfloat16
    model.model.layers[0].mlp.down_proj.weight.normal_(std=5e5)
model = model.to(torch.float16)
args = SFTConfig(
    output_dir="sft", max_steps=25, per_device_train_batch_size=8, learning_rate=1e-2, logging_steps=5,
    bf16=False, gradient_checkpointing=False, report_to=[], save_strategy="no", use_cpu=True, disable_tqdm=True,
    logging_nan_inf_filter=False,
)
SFTTrainer(
    model=model, args=args, train_dataset=Dataset.from_dict({"text": texts}), processing_class=tok,
    peft_config=LoraConfig(r=8, lora_alpha=16, target_modules="all-linear"),
).train()

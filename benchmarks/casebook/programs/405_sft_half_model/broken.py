import torch
from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from trl import SFTConfig, SFTTrainer

torch.manual_seed(0)
words = ["<pad>", "<eos>", "<unk>"] + [f"w{i}" for i in range(30)]
raw = Tokenizer(models.WordLevel({w: i for i, w in enumerate(words)}, unk_token="<unk>"))
raw.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
tok = PreTrainedTokenizerFast(tokenizer_object=raw, pad_token="<pad>", eos_token="<eos>", unk_token="<unk>")

texts = [" ".join(f"w{(s + j) % 30}" for j in range(10)) for s in torch.randint(0, 30, (200,)).tolist()]
cfg = LlamaConfig(
    vocab_size=len(words), hidden_size=32, intermediate_size=64, num_hidden_layers=2,
    num_attention_heads=2, max_position_embeddings=32, pad_token_id=0, eos_token_id=1, bos_token_id=1,
)
model = LlamaForCausalLM(cfg).to(torch.float16)
args = SFTConfig(
    output_dir="sft", max_steps=25, per_device_train_batch_size=8, learning_rate=5e-3, logging_steps=5,
    bf16=False, gradient_checkpointing=False, report_to=[], save_strategy="no", use_cpu=True, disable_tqdm=True,
)
SFTTrainer(
    model=model, args=args, train_dataset=Dataset.from_dict({"text": texts}), processing_class=tok
).train()

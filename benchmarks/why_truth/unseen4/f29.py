"""Supervised fine-tuning of a small causal model with TRL on templated question/answer pairs."""
import argparse

import torch
from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from trl import SFTConfig, SFTTrainer

COLOURS = ["red", "green", "blue", "white", "black", "yellow", "pink", "grey"]
THINGS = ["car", "house", "bird", "cup", "shoe", "door", "lamp", "tree"]


def build_tokenizer():
    words = ["<pad>", "<eos>", "<unk>", "what", "colour", "is", "the", "it", ".", "?"] + COLOURS + THINGS
    tok = Tokenizer(models.WordLevel({w: i for i, w in enumerate(words)}, unk_token="<unk>"))
    tok.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=tok, pad_token="<pad>", eos_token="<eos>", unk_token="<unk>")


def make_texts(n, seed):
    g = torch.Generator().manual_seed(seed)
    rows = []
    for k in torch.randint(0, 8, (n,), generator=g).tolist():
        thing, colour = THINGS[k], COLOURS[(3 * k + 1) % 8]
        rows.append(f"what colour is the {thing} ? the {thing} is {colour} .")
    return Dataset.from_dict({"text": rows})


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--dtype", default="bfloat16")
    ap.add_argument("--lr", type=float, default=2e-4)
    ap.add_argument("--epochs", type=int, default=4)
    args = ap.parse_args()
    torch.manual_seed(0)
    tok = build_tokenizer()
    cfg = LlamaConfig(vocab_size=len(tok), hidden_size=48, intermediate_size=96, num_hidden_layers=2,
                      num_attention_heads=4, num_key_value_heads=4, max_position_embeddings=32, initializer_range=0.4,
                      pad_token_id=0, eos_token_id=1, bos_token_id=1)
    model = LlamaForCausalLM(cfg).to(getattr(torch, args.dtype))
    conf = SFTConfig(output_dir="out", num_train_epochs=args.epochs, per_device_train_batch_size=16,
                     learning_rate=args.lr, lr_scheduler_type="constant", max_length=24, logging_steps=20, bf16=False,
                     gradient_checkpointing=False, save_strategy="no", report_to=[], disable_tqdm=True,
                     use_cpu=not torch.cuda.is_available())
    trainer = SFTTrainer(model=model, args=conf, train_dataset=make_texts(640, 0), eval_dataset=make_texts(64, 1),
                         processing_class=tok)
    trainer.train()
    print(f"eval_loss {float(trainer.evaluate()['eval_loss']):.4f}")


if __name__ == "__main__":
    main()

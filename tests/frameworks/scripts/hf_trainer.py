"""transformers' Trainer on a small model made from a configuration; nothing is loaded from a hub."""

import sys

import torch
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainerCallback, TrainingArguments
from transformers.trainer_callback import PrinterCallback


class Losses(TrainerCallback):
    def on_log(self, args, state, control, logs=None, **_):
        if logs and "loss" in logs:
            print(f"step {state.global_step}  loss {logs['loss']:.5f}")


class Data(torch.utils.data.Dataset):
    def __len__(self) -> int:
        return 32

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        made = torch.Generator().manual_seed(index)
        words = torch.randint(5, 60, (8,), generator=made)
        return {"input_ids": words, "attention_mask": torch.ones_like(words), "labels": words[0] % 2}


def main() -> None:
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=64, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32,
        hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
    )  # fmt: skip
    arguments = TrainingArguments(
        sys.argv[1], use_cpu=True, per_device_train_batch_size=4, max_steps=4, logging_steps=1, report_to=[],
        save_strategy="no", disable_tqdm=True, dataloader_num_workers=0,
    )  # fmt: skip
    trainer = Trainer(BertForSequenceClassification(config), arguments, train_dataset=Data(), callbacks=[Losses()])
    trainer.remove_callback(PrinterCallback)  # it prints how long it took
    trainer.train()
    total = sum(p.double().abs().sum().item() for p in trainer.accelerator.unwrap_model(trainer.model).parameters())
    print(arguments.parallel_mode.value, arguments.world_size, arguments.process_index, f"{total:.4f}")


if __name__ == "__main__":
    main()

import torch

from fer_vit.train.ema import moving_average


def test_the_average_forgets_its_first_steps_and_then_keeps_its_decay() -> None:
    values = torch.rand(200, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    average, expected = values[0], values[0].tolist()
    for count in range(1, 200):
        average = moving_average(average, values[count], torch.tensor(count), decay=0.9)
        kept = min(0.9, (1 + count) / (10 + count))
        expected = [kept * old + (1 - kept) * new for old, new in zip(expected, values[count].tolist(), strict=True)]
    assert torch.allclose(average, torch.tensor(expected, dtype=torch.float64))


def test_counters_are_not_averaged() -> None:
    assert moving_average(torch.tensor(3), torch.tensor(8), torch.tensor(5), decay=0.9) == 8

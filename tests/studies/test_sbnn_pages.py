"""The Markdown tables of the one-shot and the VGG study."""

from studies.sbnn_pages import one_shot_table, vgg_table

RATES = (0.5, 0.75, 0.9, 0.95, 0.98, 0.982, 0.99, 0.995)


def record(name, *scores):
    curves = {score: [{"droprate": rate, "error": rate / 10} for rate in RATES] for score in scores}
    return {"name": name, "error_mean": 0.0123, "curves": curves}


def test_ours_by_every_ranking_then_the_papers():
    text = one_shot_table([record("m1200-bbb", "snr"), record("m1200", "inclusion", "snr"),
                           record("m400", "snr"), record("l300-set1", "snr")])  # fmt: skip
    lines = [[cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines()[2:]]
    assert [(own[0], own[1]) for own in lines] == [
        ("MNIST, 2 x 400", "sBNN, signal to noise"),
        ("MNIST, 2 x 400", "*the paper*"),
        ("MNIST, 2 x 1200", "sBNN, inclusion"),
        ("MNIST, 2 x 1200", "sBNN, signal to noise"),
        ("MNIST, 2 x 1200", "*the paper*"),
        ("MNIST, 2 x 1200", "Bayes by backprop"),
        ("MNIST, 2 x 1200", "*the paper*"),
        ("LeNet-300-100, prior set 1", "sBNN, signal to noise"),
    ]
    assert lines[0][2:] == ["1.23", "5.00", "7.50", "9.00", "9.50", "9.80", "9.90", "9.95"]
    assert lines[1][2:] == ["1.45", "", "", "", "", "", "", ""]
    assert lines[6][2:] == ["1.24", "1.24", "1.24", "", "1.29", "1.39", "", ""]


def test_sparse_networks_beside_the_papers():
    row = {"setting": {"zeros": 98.5, "epochs": 30}, "zeros": 0.985, "weights": 224816,
           "error": 9.5, "renewed_error": 9.6, "nll": 0.31, "ece": 0.02,
           "seconds": 99.6}  # fmt: skip
    other = {**row, "setting": {"zeros": 90.0, "epochs": 30}}
    first, second = vgg_table([row, other]).splitlines()[2:]
    assert first == "| 98.5 % | 224,816 | 30 | 9.50 % | 9.60 % | 0.310 | 0.020 | 8.7 % | 100 |"
    assert second.split("|")[8].strip() == ""


def test_no_records_no_table():
    assert (one_shot_table([]), vgg_table([])) == ("", "")

"""A scan on the device that is not there (`tests/pretend_device.py`) has the numbers of a scan on the processor."""

from hub import tiny_bert

from lipnb import scan


def _scanned(folder, text, output):
    from pretend_device import LOG, PretendDevice

    options = {"lengths": [6], "windows": 2, "close": False, "progress": False}
    here = scan(folder, text, output=output / "cpu", **options)
    with PretendDevice():
        LOG.clear()
        there = scan(folder, text, output=output / "device", device="pretend", **options)
        assert LOG["waits"] > 100, "nothing ran on the device"
    assert there.about["settings"]["device"] == "pretend:0", there.about["settings"]["device"]
    rounding = ["self_check", "residual"]  # what rounding leaves: another order of sums, another number
    assert (there.summary[rounding] < 1e-4).all(axis=None), there.summary[rounding]
    numbers = here.summary.select_dtypes("number").columns.drop(rounding)
    assert len(here.summary) and (there.summary.passed == here.summary.passed).all()
    gap = (there.summary[numbers] / here.summary[numbers] - 1).abs().max().max()
    assert gap < 1e-4, gap


def test_a_scan_computes_on_the_device_that_it_was_asked_for(apart, tmp_path):
    folder = tiny_bert(tmp_path / "bert")
    apart(_scanned, folder, "a b c d e f g h i j k l m n o p\n" * 40, tmp_path)

"""Working memory of stacked MLPs."""

from fedcrab.simulate.engines.mlp_step import Workspace


def test_room_is_lent_again():
    room = Workspace()
    first, second = room.lend((3, 5), (2, 2, 7))
    assert (first.shape, second.shape) == ((3, 5), (2, 2, 7))
    assert (second.data_ptr() - first.data_ptr()) % 64 == 0
    first.fill_(1), second.fill_(2)
    assert first.unique().tolist() == [1]
    assert room.lend((4,))[0].data_ptr() == first.data_ptr()
    assert room.lend((1000,))[0].shape == (1000,)

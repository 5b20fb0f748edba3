"""Layouts as deep as real models are: their names and kinds, with tensors of few numbers."""

from fedcrab import Field, Layout

RESNETS = {18: (2, 2, 2, 2), 50: (3, 4, 6, 3)}


def resnet(depth: int) -> Layout:
    """The names and kinds of torchvision's ResNets, with tensors of few numbers."""
    fields: list[Field] = []

    def weights(name: str) -> None:
        fields.append(Field(f"{name}.weight", (2, 3, 1, 1)))

    def norm(name: str) -> None:
        for what, trained in (
            ("weight", True),
            ("bias", True),
            ("running_mean", False),
            ("running_var", False),
        ):
            fields.append(Field(f"{name}.{what}", (2,), trained=trained))
        fields.append(Field(f"{name}.num_batches_tracked", (), trained=False, integer=True))

    weights("conv1"), norm("bn1")
    for layer, blocks in enumerate(RESNETS[depth], 1):
        for block in range(blocks):
            for conv in range(1, 3 if depth < 50 else 4):
                weights(f"layer{layer}.{block}.conv{conv}"), norm(f"layer{layer}.{block}.bn{conv}")
            if block == 0 and (layer > 1 or depth >= 50):
                weights(f"layer{layer}.0.downsample.0"), norm(f"layer{layer}.0.downsample.1")
    fields += [Field("fc.weight", (10, 2)), Field("fc.bias", (10,))]
    return Layout(tuple(fields))


def transformer(count: int) -> Layout:
    names = (
        f"base_model.model.model.layers.{i}.self_attn.q_proj.lora_A.default.weight" for i in range(count)
    )
    return Layout(tuple(Field(name, (2,)) for name in names))


LAYOUTS = {  # 122 tensors (102 in the count of those who leave the counters out), 320 and 1,000
    "resnet-18": resnet(18),
    "resnet-50": resnet(50),
    "transformer": transformer(1000),
}
assert [len(layout.fields) for layout in LAYOUTS.values()] == [122, 320, 1000]

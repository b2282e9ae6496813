"""Mechanism: load a model through TransformerLens, score token sequences exactly, patch and ablate its heads.

    from mech import Engine, HeadSet, Query, ablate, attribute, knockout, load_model, mean_z, patch

    engine = Engine(load_model("smollm2-135m-q4"))         # or a folder, a TransformerBridge, (hf_model, tokenizer)
    clean = Query.from_text(engine.model, "When Mary and John went out, John gave a book to", " Mary")
    other = Query.from_text(engine.model, "When Mary and John went out, Mary gave a book to", " Mary")

    effects = patch(engine, recipient=other, donor=clean)  # z of every head, one after another
    effects.to_dataframe()                                 # intervention, layer, head, logprob, effect (nats), share
    effects.plot()                                         # a map of layers and heads
    patch(engine, other, clean, {"two": HeadSet.parse("L18H6,L17H3")})      # heads of a set together
    ablate(engine, clean, z=mean_z(engine, [clean.tokens]).z)               # mean ablation; zero without z
    knockout(engine, clean, sources=range(1, 4))                            # heads do not see these positions
    attribute(engine, other, clean)                        # attribution patching, heads and MLPs

A `Run` keeps activations under TransformerLens names: `engine.run(clean, keep=["blocks.18.attn.hook_z"]).cache`.
Importing this package loads no library; a name's module is loaded where it is first used.
"""

from mech.lazy import attach

__getattr__, __dir__, __all__ = attach(__name__, __file__)

"""Changes to stock modules that lack something on the recording runtime, made at their import.

Settings are environment variables:

    OPMETER_CANN    version of CANN
    OPMETER_ALONE   this process is rank 0 of a world whose other ranks do not exist
    OPMETER_DEVICE  device generation instead of the one that vllm_ascend was built for
    OPMETER_HOST    host time is measured: each step has readings of it
    OPMETER_SERVED  requests are served in virtual time: the host does not wait for the device
                    before a step
    OPMETER_INTEGERS
                    0: integers are not computed, since to see every operator of Python takes as
                    long as the host itself
"""

import faulthandler
import importlib.abc
import inspect
import os
import sys
import time

from opmeter_launches import computed_ns, not_of_the_host, record_named, record_step
from opmeter_pointers import layout

_PATCHES = {}
_AI_CORES = 24
_RANKS_OF_A_NODE = 16
_INT4_IN_INT32 = 8
_WITH_TILING = ("batch_matmul_transpose", "mla_preprocess")
_CHANGED = ("init_process_group", "new_group", "all_reduce")
_LAID_OUT = ".wo_a"  # of DeepSeek-V4
_OF_CACHE = ("k_cache_scale", "k_cache_offset", "v_cache_scale", "v_cache_offset")  # of INT8
_OBJECTS = ("broadcast_object_list", "all_gather_object")
_KEPT = []  # registrations end with their library
STEPS = []  # (new tokens, tokens in total) of each request, by step
READINGS = []  # of the host at the begin of each step, where host time is measured
HAS_CHOSEN_BLOCKS = False  # whether the user chose the number of blocks of the cache
TOKENS = set()  # numbers of new tokens for which graphs are captured; all if it is empty


def after(module):
    """Register a function that changes a module after its import."""

    def keep(patch):
        _PATCHES.setdefault(module, []).append(patch)
        return patch

    return keep


class _Finder(importlib.abc.MetaPathFinder):
    """Lets the other finders find a module, and runs its patches after its own code."""

    def find_spec(self, name, path=None, target=None):
        patches = _PATCHES.pop(name, None)
        if patches is None:
            return None
        for finder in sys.meta_path:
            if finder is self or not hasattr(finder, "find_spec"):
                continue
            spec = finder.find_spec(name, path, target)
            if spec is not None and spec.loader is not None:
                execute = spec.loader.exec_module

                def exec_module(module, execute=execute):
                    execute(module)
                    for patch in patches:
                        patch(module)

                spec.loader.exec_module = exec_module
                return spec
        return None


sys.meta_path.insert(0, _Finder())


@after("triton.backends")
def _triton_driver(module):
    """triton-ascend is active only with CANN's compiler, and compiles C++ against its headers."""
    driver = module.backends["ascend"].driver
    driver.is_active = classmethod(lambda cls: True)
    driver.get_current_target = lambda self: sys.modules["triton.backends.compiler"].GPUTarget(
        "npu", "Ascend910B2", 0
    )
    utils = driver.__init__.__globals__["NPUUtils"]
    utils.__init__ = lambda self: None
    utils.get_arch = lambda self: "Ascend910B2"
    utils.get_aicore_num = lambda self: _AI_CORES
    utils.set_device_limit = lambda self, *arguments: None
    utils.load_binary = lambda self, *arguments: None


@after("triton.runtime.jit")
def _triton_launch(module):
    """The launch of a Triton kernel is recorded instead of compiled."""

    def run(self, *args, **named):
        with not_of_the_host:  # Triton's own time at a launch is unknown
            launch(self, *args, **named)

    def launch(self, *args, grid, warmup, **kwargs):
        import torch

        names = set(self.arg_names)
        given = {name: value for name, value in kwargs.items() if name in names}
        bound = inspect.signature(self.fn).bind(*args, **given)
        bound.apply_defaults()
        if callable(grid):
            grid = grid(dict(bound.arguments))
        known = (torch.Tensor, bool, int, float, str)
        shown = [
            value if value is None or isinstance(value, known) else str(value)
            for value in bound.arguments.values()
        ]
        if not warmup:
            if self.fn.__name__.startswith("rejection_"):
                import opmeter_integers

                opmeter_integers.accept_drafts(
                    bound.arguments["output_token_ids_ptr"],
                    bound.arguments.get("cu_num_draft_tokens_ptr"),
                )
            read_and_written = layout(self, bound.arguments)
            grid = list(map(int, grid))
            record_named(f"triton.{self.fn.__name__}", *shown, "grid", grid, read_and_written)

    module.JITFunction.run = run


@after("triton.runtime.autotuner")
def _triton_choice(module):
    """Of the configurations of a kernel the first is taken: no launch has a duration here, and a
    call is to be recorded with equal text each time."""
    module.Autotuner._bench = lambda self, *args, config, **meta: [1.0, 1.0, 1.0]


@after("torch_npu")
def _version_of_cann(module):
    """torch_npu reads the version from an installation, and engines choose operators by it."""
    import torch

    torch.version.cann = os.environ["OPMETER_CANN"]


@after("torch_npu")
def _packed_weights(module):
    """torch_npu packs weights of 4 bits on the host, which takes several times their memory; of
    dummy ones only the result's shape is needed."""
    import torch

    def packed(weight, inner_k_tiles=0):
        return weight.new_empty((*weight.shape[:-1], weight.shape[-1] // _INT4_IN_INT32))

    library = torch.library.Library("npu", "IMPL")
    library.impl("npu_convert_weight_to_int4pack", packed, "PrivateUse1")
    _KEPT.append(library)


@after("vllm_ascend.vllm_ascend_C")
def _operators_with_tiling(module):
    """Operators whose host code asks the platform for its cores, and launches by address: they are
    recorded by name. What they return are arguments."""
    import torch

    library = torch.library.Library("_C_ascend", "IMPL")

    def recorded(name):
        schema = getattr(torch.ops._C_ascend, name).default._schema
        returned = {one.name for one in schema.returns}

        def run(*args, **named):
            given = {one.name: one.default_value for one in schema.arguments}
            given |= dict(zip(given, args, strict=False)) | named
            record_named(name, *given.values())
            found = tuple(value for key, value in given.items() if key in returned)
            return found or None

        return run

    for name in _WITH_TILING:
        library.impl(name, recorded(name), "PrivateUse1")
    _KEPT.append(library)


@after("vllm.model_executor.model_loader.dummy_loader")
def _laid_out_weights(module):
    """Dummy weights are not loaded, but the loaders of these give them another layout."""
    original = module.DummyModelLoader.load_weights

    def load_weights(self, model, model_config):
        original(self, model, model_config)
        for layer in model.modules():
            if getattr(layer, "prefix", "").endswith(_LAID_OUT) and layer.weight.ndim == 2:
                shape = (layer.output_size, layer.input_size)
                layer.weight_loader(layer.weight, layer.weight.data.new_empty(shape))
            for name in _OF_CACHE:  # one for each channel of a rank
                if (scale := getattr(layer, name, None)) is not None:
                    channels = layer.num_kv_heads * layer.head_size
                    scale.weight_loader(scale, scale.data.new_empty(channels))

    module.DummyModelLoader.load_weights = load_weights


@after("vllm_ascend.worker.worker")
def _named_faults(module):
    """A fault of native code lists the Python functions that called it, as the handler that
    torch_npu installs with the device does not."""
    original = module.NPUWorker.init_device

    def init_device(self):
        original(self)
        faulthandler.enable()

    module.NPUWorker.init_device = init_device


@after("vllm.v1.cudagraph_dispatcher")
def _graphs_of_passes(module):
    """Only the sizes of graphs that the passes replay are captured."""
    dispatcher = module.CudagraphDispatcher
    add = dispatcher.add_cudagraph_key

    def add_cudagraph_key(self, mode, descriptor):
        sizes = self._bs_to_padded_graph_size
        needed = {sizes[n] for n in TOKENS if n < len(sizes)}
        if not TOKENS or descriptor.num_tokens in needed:
            add(self, mode, descriptor)

    dispatcher.add_cudagraph_key = add_cudagraph_key


@after("vllm.v1.core.kv_cache_utils")
def _blocks_of_groups(module):
    """Groups of layers whose caches differ take their blocks from one pool, which has as many more
    as there are groups."""
    original = module.get_kv_cache_groups
    grown = []  # once, where groups are found twice

    def get_kv_cache_groups(config, *given, **named):
        groups = original(config, *given, **named)
        if not HAS_CHOSEN_BLOCKS and not grown:
            grown.append(len(groups))
            config.cache_config.num_gpu_blocks_override *= max(1, len(groups))
        return groups

    module.get_kv_cache_groups = get_kv_cache_groups


@after("vllm_ascend.worker.model_runner_v1")
def _marks_of_steps(module):
    """Marks in the log: where a step begins, where a rank without requests runs a pass for the sake
    of the others, and around the layers that draft tokens."""
    original = module.NPUModelRunner.execute_model

    def execute_model(self, scheduled, *more, **named):
        import torch

        if os.environ.get("OPMETER_SERVED"):
            record_step()
            return original(self, scheduled, *more, **named)
        record_named("MARK", "end", len(STEPS))  # what follows is of no pass
        torch.npu.synchronize()
        if scheduled.total_num_scheduled_tokens:
            torch.npu.manual_seed(0)  # offsets of random numbers are arguments
            if os.environ.get("OPMETER_HOST"):
                with not_of_the_host:
                    READINGS.append(_reading())
            record_named("MARK", "step", len(STEPS))
            STEPS.append(_requests(scheduled))
        else:
            record_named("MARK", "idle", len(STEPS))
        return original(self, scheduled, *more, **named)

    drafts = module.NPUModelRunner.propose_draft_token_ids

    def propose_draft_token_ids(self, *given, **named):
        record_named("MARK", "draft", 1)
        found = drafts(self, *given, **named)
        record_named("MARK", "draft", 0)
        return found

    module.NPUModelRunner.execute_model = execute_model
    module.NPUModelRunner.propose_draft_token_ids = propose_draft_token_ids


@after("vllm.model_executor.models.qwen3_vl")
def _tokens_without_images(module):
    """Without images, vLLM 0.18 keeps what they add to the first layers of the decoder on no
    device, and ends in the first pass: nothing is added."""
    original = module.Qwen3VLForConditionalGeneration.__init__

    def __init__(self, *, vllm_config, prefix="model"):  # vLLM looks for both names
        vision = vllm_config.model_config.hf_config.vision_config
        if hasattr(vision, "deepstack_visual_indexes"):
            vision.deepstack_visual_indexes = []
        original(self, vllm_config=vllm_config, prefix=prefix)

    module.Qwen3VLForConditionalGeneration.__init__ = __init__


@after("vllm_ascend.worker.model_runner_v1")
def _graphs_of_tokens(module):
    """A model that reads images runs passes of tokens where it accepts none. The runs that compile
    and capture it have embeddings there in 0.18, which then ends in the first pass; in 0.23 they
    have tokens, as the passes do."""
    original = module.NPUModelRunner.__init__

    def __init__(self, *given, **named):
        original(self, *given, **named)
        self.is_multimodal_model = self.is_multimodal_model and self.supports_mm_inputs

    module.NPUModelRunner.__init__ = __init__


def _reading():
    """Return the time of day in ns, what this thread computed and waited for a core, and the core
    time in ns that the host of a virtual machine took."""
    with open("/proc/thread-self/schedstat") as file:
        _, waited_ns, _ = map(int, file.read().split())
    with open("/proc/stat") as file:
        stolen = int(file.readline().split()[8])
    stolen_ns = stolen * 1_000_000_000 // os.sysconf("SC_CLK_TCK")
    return time.monotonic_ns(), computed_ns(), waited_ns, stolen_ns


def _requests(scheduled):
    computed = {one.req_id: one.num_computed_tokens for one in scheduled.scheduled_new_reqs}
    cached = scheduled.scheduled_cached_reqs
    computed.update(zip(cached.req_ids, cached.num_computed_tokens, strict=True))
    new = scheduled.num_scheduled_tokens
    return [(count, computed[name] + count) for name, count in new.items()]


if os.environ.get("OPMETER_ALONE"):

    @after("torch.distributed.distributed_c10d")
    def _groups_alone(module):
        """Groups of the CPU are torch's own fake ones; a store has what this rank wrote."""
        init, new, reduce = module.init_process_group, module.new_group, module.all_reduce

        def init_process_group(backend=None, init_method=None, timeout=None, *sizes, **more):
            import torch
            import torch.testing._internal.distributed.fake_pg

            more["store"] = torch._C._distributed_c10d.HashStore()
            more["world_size"], more["rank"] = int(os.environ["WORLD_SIZE"]), 0
            return init(backend, None, timeout, **more)

        def new_group(ranks=None, timeout=None, backend=None, *more, **named):
            return new(ranks, timeout, "fake" if backend == "gloo" else backend, *more, **named)

        def all_reduce(tensor, op=module.ReduceOp.SUM, group=None, async_op=False):
            done = reduce(tensor, op, group, async_op)
            if op == module.ReduceOp.SUM and not tensor.dtype.is_floating_point:
                import opmeter_integers

                ranks, rank = module.get_world_size(group), module.get_rank(group)
                opmeter_integers.sum_of_equal_ranks(tensor, ranks, rank)
            return done

        def all_gather_object(object_list, obj, group=None):
            object_list[:] = [obj] * len(object_list)

        module.init_process_group, module.new_group = init_process_group, new_group
        module.all_reduce = all_reduce
        module._store_based_barrier = lambda *arguments, **named: None
        # no other rank sends an object; a fake group would leave its size unset
        module.broadcast_object_list = lambda *arguments, **named: None
        module.all_gather_object = all_gather_object

    @after("torch.distributed")
    def _names_alone(module):
        c10d = module.distributed_c10d
        for name in (*_CHANGED, *_OBJECTS):
            setattr(module, name, getattr(c10d, name))

    @after("vllm.config.parallel")
    def _world_alone(module):
        """As in a deployment, the ranks of other data parallel groups do not count as ranks of an
        engine; with an external launcher, they do."""
        original = module.ParallelConfig.__post_init__

        def __post_init__(self):
            original(self)
            if self.distributed_executor_backend == "external_launcher":
                self.world_size //= self.data_parallel_size

        module.ParallelConfig.__post_init__ = __post_init__

    @after("vllm.distributed.parallel_state")
    def _nodes_alone(module):
        def in_the_same_node_as(group, source_rank=0):
            import torch

            ranks = torch.distributed.get_process_group_ranks(group)
            node = ranks[source_rank] // _RANKS_OF_A_NODE
            return [rank // _RANKS_OF_A_NODE == node for rank in ranks]

        module.in_the_same_node_as = in_the_same_node_as

    @after("vllm.distributed.device_communicators.shm_broadcast")
    def _no_queue(module):
        module.MessageQueue.create_from_process_group = staticmethod(lambda *a, **k: None)


if os.environ.get("OPMETER_DEVICE"):

    @after("vllm_ascend._build_info")
    def _device_generation(module):
        """The wheel states one generation, in a file that its build wrote."""
        module.__device_type__ = os.environ["OPMETER_DEVICE"]


@after("vllm_ascend.worker.worker")
def _compute_integers(module):
    original = module.NPUWorker.init_device

    def init_device(self):
        import opmeter_integers

        original(self)
        if os.environ.get("OPMETER_INTEGERS") != "0":
            opmeter_integers.enable()

    module.NPUWorker.init_device = init_device

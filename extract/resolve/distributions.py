"""The distribution that provides an imported package.

An import name is not the name that an index knows: `cutlass` is a logistic regression there, and NVIDIA's package is
`nvidia-cutlass-dsl`. So only names that the source's metadata states, or that are in the tables below, are ever
requested from an index; any other is a guess, and its requirement says so:

    find_requirement("cutlass", ["nvidia-cutlass-dsl>=4"])  ->  "nvidia-cutlass-dsl"
    find_requirement("cutlass", [])                         ->  'cutlass; extra == "guess"'

The marker makes every installer skip it. What a wheel really contains is checked when it is fetched
(`extract.proofs.runtime`).
Source: https://packaging.python.org/specifications/core-metadata/#provides-dist-multiple-use (no release states it)
"""

import ast
import functools
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from lemur_core.files.errors import UsageError
from manifests.provenance import GUESS, is_guess

if TYPE_CHECKING:  # options are read without opening sources
    from extract.sources import PackageSource

#: Packages of the field and their distributions, the most common first; without them, that of the same name, with a
#: dash for an underscore.
_DISTRIBUTIONS: Mapping[str, tuple[str, ...]] = {
    package: tuple(names.split(",")) if names else (package.replace("_", "-"),)
    for package, _, names in (
        word.partition("=")
        for word in """
    attr=attrs Bio=biopython bs4=beautifulsoup4 cc3d=connected-components-3d cleanfid=clean-fid clip=openai-clip
    Crypto=pycryptodome cupy=cupy-cuda12x
    cv2=opencv-python,opencv-python-headless,opencv-contrib-python,opencv-contrib-python-headless
    dateutil=python-dateutil dotenv=python-dotenv faiss=faiss-cpu,faiss-gpu fitz=pymupdf git=gitpython
    google=protobuf haiku=dm-haiku hydra=hydra-core imblearn=imbalanced-learn imwatermark=invisible-watermark
    mmaction=mmaction2 mmcv=mmcv,mmcv-lite,mmcv-full mmseg=mmsegmentation mpl_toolkits=matplotlib
    neuralop=neuraloperator nrrd=pynrrd open_clip=open-clip-torch OpenGL=pyopengl osgeo=gdal
    parselmouth=praat-parselmouth PIL=pillow pkg_resources=setuptools<81 pl_bolts=lightning-bolts
    pynvml=nvidia-ml-py pyro=pyro-ppl pywt=pywavelets ruamel=ruamel.yaml scvi=scvi-tools skimage=scikit-image
    skbase=scikit-base sklearn=scikit-learn sklearn_extra=scikit-learn-extra sksparse=scikit-sparse
    taming=taming-transformers tree=dm-tree turbojpeg=pyturbojpeg umap=umap-learn yaml=pyyaml
    accelerate addict albumentations alphafold3_pytorch anndata annoy arviz ase asteroid audioread av
    axial_positional_embedding batchgenerators beartype bitsandbytes blobfile blosc boto3 botorch bottleneck
    braindecode brisque calflops captum cartopy causal_conv1d cellpose cftime chex clearml click cloudpickle
    colorama comet_ml dask datasets decord decord2 deepchem deepspeed dgl dgllife diffusers dill dotmap
    dynamic_network_architectures e3nn easydict editdistance einops einx elasticdeform ema_pytorch emoji escnn
    espnet evaluate exifread fairscale fastai fastapi ffcv fiona fire flash_attn flask flax fsspec ftfy fvcore
    gdown geopandas gpytorch gradio gym gymnasium h5py hnswlib huggingface_hub hydra_zen igraph imageio
    imageio_ffmpeg imgaug importlib_metadata inflect iopath IPython jax jaxtyping jinja2 jiwer joblib
    jsonargparse jsonlines julius kornia kornia_rs lap leidenalg Levenshtein librosa lightning lightning_fabric
    lightning_utilities linear_attention_transformer linear_operator lion_pytorch llvmlite lmdb local_attention
    loguru lpips lxml lz4 mamba_ssm matminer matplotlib mediapipe medmnist medpy mendeleev minigrid
    ml_collections mlflow mmcls mmdet mmengine mmpose mmpretrain mne monai motmetrics moviepy mpi4py msgpack
    munkres natten netCDF4 networkx nibabel ninja nltk nnAudio nnunetv2 numba numcodecs numpyro ogb omegaconf
    onnx onnxruntime onnxslim open3d openai openpyxl opt_einsum optax optree optuna orbax orjson packaging
    pandas patsy peft perceiver_pytorch performer_pytorch pettingzoo phonemizer piq plotly plyfile
    point_cloud_utils polars pooch pretrainedmodels prettytable psutil ptflops pthflops pyarrow pyclipper
    pycocotools pydantic pydensecrf pydicom pyiqa pyloudnorm pymatgen pyproj pyrender pytest pytorch_lightning
    pytorch_metric_learning pytorch_msssim pytorch_wavelets pytorchvideo pyvista rapidfuzz rasterio rawpy ray
    rdkit reformer_pytorch regex requests resampy rich roboflow rotary_embedding_torch sacrebleu safetensors
    sahi scanpy schnetpack scipy seaborn segment_anything segmentation_models_pytorch sentence_transformers
    sentencepiece sentry_sdk shapely simple_parsing SimpleITK six soundfile spacy speechbrain stable_baselines3
    stardist statsmodels supervision swanlab sympy tabulate tensorboard tensorboard_logger tensorboardX
    tensordict tensorflow tensorflow_datasets termcolor tflite_runtime thop tifffile tiktoken tikzplotlib timm
    tokenizers toml torch_cluster torch_ema torch_fidelity torch_geometric torch_scatter torch_sparse
    torch_spline_conv torch_xla torchaudio torchcodec torchdata torchdiffeq torchdrug torchgeo torchinfo torchio
    torchlibrosa torchmetrics torchprofile torchsde torchsummary torchtext torchtune torchtyping tqdm
    transformers trimesh triton trl typer typing_extensions tyro ultralytics unidecode vector_quantize_pytorch
    visdom vit_pytorch vtk wandb webcolors webdataset x_transformers xarray xformers xgboost xlrd yacs yapf zarr
    zstandard
    """.split()  # noqa: SIM905 (one line for each says no more)
    )
}


def read_confirmed(pairs: Iterable[str]) -> dict[str, str]:
    """Return distributions by import name from texts like `hydra=hydra-core`.

    Raises: UsageError if a text has another form.
    """
    confirmed = {}
    for pair in pairs:
        package, _, distribution = pair.partition("=")
        try:
            valid = package.isidentifier() and not Requirement(distribution).marker
        except InvalidRequirement:
            valid = False
        if not valid:
            raise UsageError(f"--distribution {pair}: not of the form IMPORT=NAME; for example hydra=hydra-core")
        confirmed[package] = distribution
    return confirmed


def list_distributions(package: str) -> tuple[str, ...]:
    """Return the distributions that may provide an import name; the most common first."""
    top = package.split(".")[0]
    return _DISTRIBUTIONS.get(top, (top.strip("_").replace("_", "-") or "x",))


def find_requirement(package: str, stated: Iterable[str], confirmed: Mapping[str, str] | None = None) -> str:
    """Return the requirement for an imported package.

    Args:
        package: an import name.
        stated: requirements of the metadata, PEP 508.
        confirmed: distributions by import name, as the user states them.
    Returns: The distribution that is confirmed, stated or generally known, without its version, but with a stated URL.
        Otherwise the import name as a guess (`is_guess`), which no installer follows.
    """
    top = package.split(".")[0]
    if confirmed and top in confirmed:
        return confirmed[top]
    requirement = _find_stated(package, tuple(stated))
    if requirement is not None:
        if requirement.url or is_guess(str(requirement)):
            return str(requirement)
        # What is generally known of its versions holds, too: the newest setuptools has no `pkg_resources` any more.
        known = {Requirement(text).name: text for text in list_distributions(top) if Requirement(text).specifier}
        return known.get(canonicalize_name(requirement.name), requirement.name)
    return list_distributions(top)[0] if is_known(top) else make_guess(package)


def make_guess(package: str) -> str:
    """Return the requirement for an imported package whose distribution is unknown."""
    return f"{package.replace('.', '-') if '.' in package else list_distributions(package)[0]}; {GUESS}"


def is_stated(package: str, requires: Iterable[str], confirmed: Mapping[str, str] | None = None) -> bool:
    """Return whether requirements, of which invalid ones are ignored, name the distribution of an imported package."""
    top = package.split(".")[0]
    listed = tuple(requires)
    return (confirmed or {}).get(top, "") in listed or _find_stated(package, listed) is not None


@functools.cache
def is_required(requires: tuple[str, ...], package: str) -> bool:
    """Return whether the metadata of a source, with these requirements, lists a package as a hard requirement."""
    hard = tuple(text for text in requires if "extra" not in text.partition(";")[2])
    return _find_stated(package, hard) is not None


def find_extra(requires: tuple[str, ...], package: str) -> str | None:
    """Return the requirement, without its marker, of the metadata for an extra that names a package's distribution."""
    extra = tuple(text for text in requires if "extra" in text.partition(";")[2])
    requirement = _find_stated(package, extra)
    return None if requirement is None else str(requirement).partition(";")[0]


@functools.cache
def parse_requirements(requires: tuple[str, ...]) -> tuple[Requirement, ...]:
    """Return the valid requirements, whatever their markers; those of old releases may be invalid."""
    parsed = []
    for text in requires:
        try:
            parsed.append(Requirement(text))
        except InvalidRequirement:
            continue
    return tuple(parsed)


def add_versions(requires: Iterable[str], sources: "Iterable[PackageSource]") -> tuple[str, ...]:
    """Return the requirements, sorted, each with the version stated by the first source that has one.

    A requirement that is a guess, has a version, or is named by no source is returned unchanged.
    """
    stated = [item for source in sources for item in parse_requirements(source.requires) if item.specifier]
    versions = {canonicalize_name(item.name): item.specifier for item in reversed(stated)}  # the first one wins

    def add_version(text: str) -> str:
        requirement = Requirement(text)
        specifier = versions.get(canonicalize_name(requirement.name))
        if requirement.specifier or requirement.url or is_guess(text) or specifier is None:
            return text
        return str(Requirement(f"{requirement.name}{specifier}"))

    return tuple(sorted(set(map(add_version, requires))))


def list_imports(tree: ast.AST) -> list[tuple[str, int]]:
    """Return the dotted names of all modules that a file imports, with lines; relative names begin with a dot."""
    names = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names += [(alias.name, node.lineno) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names.append(("." * node.level + (node.module or ""), node.lineno))
    return sorted(names, key=lambda item: (item[1], item[0]))


@functools.cache
def _find_stated(package: str, requires: tuple[str, ...]) -> Requirement | None:
    """Return the requirement that names a package's distribution, or the only one whose name is similar to it.

    The distribution of a part of a namespace, `acme.data.sets`, may have its name: `acme-data`.
    """
    top, *rest = package.split(".")
    names = {canonicalize_name(Requirement(text).name) for text in list_distributions(top)} | {canonicalize_name(top)}
    requirements = parse_requirements(requires)
    for depth in range(len(rest), 0, -1):
        part = canonicalize_name("-".join((top, *rest[:depth])))
        named = next((item for item in requirements if canonicalize_name(item.name) == part), None)
        if named is not None:
            return named
    for requirement in requirements:
        if canonicalize_name(requirement.name) in names:
            return requirement
    # A table states the name: a similar one in the metadata is another package.
    if is_known(top):
        return None
    # The wheel of a similar name must contain the package; otherwise it is not used.
    similar = [item for item in requirements if _is_similar(canonicalize_name(item.name), canonicalize_name(top))]
    return similar[0] if len({canonicalize_name(item.name) for item in similar}) == 1 else None


def is_known(top: str) -> bool:
    """Return whether the tables here state the distribution of a package."""
    return top in _DISTRIBUTIONS


def _is_similar(distribution: str, package: str) -> bool:
    """Return whether a distribution may be named after a package: `nvidia-cutlass-dsl`, `flash-linear-attention`."""
    words = distribution.split("-")
    return package in words or (len(words) > 2 and package == "".join(word[0] for word in words))

"""Pure-PyTorch stand-ins for the compiled operators that repositories bring with them.

Each file under `native/` is complete in itself (it imports only the standard library, torch and torchvision), so that
its text can be put into an emitted file. The index is keyed by the name of the operator, whoever calls it.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from types import MappingProxyType


@dataclass(frozen=True, slots=True)
class StandIn:
    """Where the stand-in of one operator is, and what is known of it.

    `file` is relative to this package; `function` is the name in that file; `note` says what it computes.
    """

    file: str
    function: str
    note: str


_FAMILIES: tuple[tuple[str, str, str], ...] = (
    ("roi_align", "RoI Align, average or maximum", "roi_align_forward roi_align_backward"),
    ("roi_pool", "RoI max pooling on real-valued bins", "roi_pool_forward roi_pool_backward"),
    ("nms", "greedy, soft and matching NMS of boxes", "nms softnms nms_match"),
    (
        "deform_conv",
        "deformable convolution v1 and v2",
        "deform_conv_forward deform_conv_backward_input deform_conv_backward_parameters deform_conv_backward_filter"
        " modulated_deform_conv_forward modulated_deform_conv_backward",
    ),
    ("ms_deform_attn", "multi-scale deformable attention", "ms_deform_attn_forward ms_deform_attn_backward"),
    (
        "focal_loss",
        "focal loss per element",
        "sigmoid_focal_loss_forward sigmoid_focal_loss_backward softmax_focal_loss_forward softmax_focal_loss_backward",
    ),
    (
        "carafe",
        "content-aware reassembly of features",
        "carafe_forward carafe_backward carafe_naive_forward carafe_naive_backward",
    ),
    ("masked_conv", "convolution where a mask is set", "masked_im2col_forward masked_col2im_forward"),
    (
        "rotated",
        "IoU and NMS of rotated boxes and quadrilaterals",
        "box_iou_rotated nms_rotated box_iou_quadri nms_quadri"
        " iou3d_boxes_overlap_bev_forward iou3d_nms3d_forward iou3d_nms3d_normal_forward",
    ),
    (
        "roi_align_rotated",
        "RoI Align on rotated regions, also rotation-invariant",
        "roi_align_rotated_forward roi_align_rotated_backward riroi_align_rotated_forward riroi_align_rotated_backward",
    ),
    ("deform_roi_pool", "RoI Align with moved bins", "deform_roi_pool_forward deform_roi_pool_backward"),
    ("prroi_pool", "precise RoI pooling", "prroi_pool_forward prroi_pool_backward prroi_pool_coor_backward"),
    ("psa_mask", "PSANet attention maps", "psamask_forward psamask_backward"),
    ("correlation", "correlation of feature patches", "correlation_forward correlation_backward"),
    (
        "sync_bn",
        "steps of synchronised batch normalisation",
        "sync_bn_forward_mean sync_bn_forward_var sync_bn_forward_output sync_bn_backward_param sync_bn_backward_data",
    ),
    ("bias_act", "bias, activation and gain in one", "fused_bias_leakyrelu fused_bias_act bias_act"),
    ("upfirdn2d", "upsample, filter, downsample", "upfirdn2d"),
    ("bbox_overlaps", "IoU or IoF of boxes", "bbox_overlaps"),
    ("swap_align2nat", "aligned to natural masks", "swap_align2nat_forward swap_align2nat_backward"),
    (
        "sparse_conv",
        "sparse convolution and pooling by index pairs",
        "get_indice_pairs_2d_forward get_indice_pairs_3d_forward get_indice_pairs_4d_forward"
        " get_indice_pairs_2d_backward get_indice_pairs_3d_backward indice_conv_forward indice_conv_backward"
        " fused_indice_conv_forward indice_maxpool_forward indice_maxpool_backward",
    ),
    (
        "points",
        "neighbour search, sampling and grouping of points",
        "ball_query_forward stack_ball_query_forward knn_forward three_nn_forward furthest_point_sampling_forward"
        " furthest_point_sampling_with_dist_forward gather_points_forward gather_points_backward group_points_forward"
        " group_points_backward stack_group_points_forward stack_group_points_backward three_interpolate_forward"
        " three_interpolate_backward chamfer_distance_forward chamfer_distance_backward assign_score_withk_forward"
        " assign_score_withk_backward",
    ),
    (
        "points_in_boxes",
        "points in boxes and polygons, and pooling by them",
        "points_in_boxes_part_forward points_in_boxes_all_forward points_in_boxes_cpu_forward"
        " points_in_polygons_forward roiaware_pool3d_forward roiaware_pool3d_backward roipoint_pool3d_forward",
    ),
    (
        "voxelize",
        "points to voxels",
        "dynamic_voxelize_forward hard_voxelize_forward dynamic_point_to_voxel_forward dynamic_point_to_voxel_backward",
    ),
    ("border_align", "maxima along box borders", "border_align_forward border_align_backward"),
    ("bezier_align", "sampling between Bezier curves", "bezier_align_forward bezier_align_backward"),
    (
        "rotated_features",
        "features at rotated boxes, filters turned",
        "rotated_feature_align_forward rotated_feature_align_backward"
        " active_rotated_filter_forward active_rotated_filter_backward",
    ),
    (
        "tin_shift",
        "shift of channel groups along time; gradient by the definition",
        "tin_shift_forward tin_shift_backward",
    ),
)

_TORCHVISION: tuple[tuple[str, str, str], ...] = (
    (
        "torchvision_ops",
        "torch only; equal to the compiled operator",
        "nms qnms roi_align qroi_align roi_pool ps_roi_align ps_roi_pool deform_conv2d",
    ),
    ("rotated", "IoU of rotated boxes, angles in degrees", "box_iou_rotated"),
)


def _index(families: tuple[tuple[str, str, str], ...]) -> Mapping[str, StandIn]:
    return MappingProxyType(
        {name: StandIn(f"native/{file}.py", name, note) for file, note, names in families for name in names.split()}
    )


NATIVE_OPS: Mapping[str, StandIn] = _index(_FAMILIES)
"""Operator name -> stand-in, for the functions of a compiled extension module (`_ext`, `_C`, ...)."""

TORCHVISION_OPS: Mapping[str, StandIn] = _index(_TORCHVISION)
"""Operator name -> stand-in for `torch.ops.torchvision.*` in files that must not import torchvision themselves."""


def find_stand_in(name: str, namespace: str = "") -> StandIn | None:
    """Stand-in of the operator `name`, or None. `namespace` is that of `torch.ops.NAMESPACE.NAME`, else empty."""
    if namespace == "torchvision":
        return TORCHVISION_OPS.get(name)
    return NATIVE_OPS.get(name)


def read_source(stand_in: StandIn) -> str:
    """Text of the file that holds the stand-in."""
    return files(__name__).joinpath(stand_in.file).read_text(encoding="utf-8")

"""Predicts the faces of a photo without fer-vit and PyTorch: pip install onnxruntime
opencv-python-headless numpy

python photo_to_probabilities.py photo.jpg model.onnx NETWORKS

`fer-vit export model.onnx` writes the model; `fer-vit export NETWORKS` a folder with the
networks that find faces and landmarks.
"""

import json
import sys

import cv2
import numpy as np
import onnxruntime

DETECTOR = "face_detection_yunet_2023mar.onnx"
SURE, DOUBT = 0.8, -1.5  # a face with a lower score and a lower logit is none
LANDMARKS = np.array([(0.325, 0.381), (0.675, 0.381), (0.5, 0.587), (0.362, 0.751), (0.638, 0.751)])


def scaling(x, y, left=0.0, top=0.0):
    return np.array([[x, 0, left], [0, y, top], [0, 0, 1]])


def move(matrix, points):
    return points @ matrix[:2, :2].T + matrix[:2, 2]


def similarity(points, target):
    """Returns the matrix (3, 3) that turns, scales and shifts points (5, 2) onto others
    with the least square error.
    """
    a, b = points @ [1, 1j], target @ [1, 1j]
    turn = np.vdot(a - a.mean(), b - b.mean()) / np.vdot(a - a.mean(), a - a.mean()).real
    shift = b.mean() - turn * a.mean()
    return np.array(
        [[turn.real, -turn.imag, shift.real], [turn.imag, turn.real, shift.imag], [0, 0, 1]]
    )


def resize(image, side):
    """Scales the longer side to `side` pixels; strong reductions begin with halves."""
    while max(image.shape[:2]) > 2 * side:
        image = scale_image(image, 0.5, cv2.INTER_LINEAR)
    scale = side / max(image.shape[:2])
    slight = cv2.INTER_LINEAR if scale >= 0.75 else cv2.INTER_AREA
    return scale_image(image, scale, cv2.INTER_CUBIC if scale > 1 else slight)


def scale_image(image, scale, method):
    width, height = (max(1, round(length * scale)) for length in image.shape[1::-1])
    return cv2.resize(image, (width, height), interpolation=method)


def warp(image, matrix, size):
    """Draws the crop (size, size, 3) of a matrix (3, 3) from image to crop pixels;
    reductions average areas.
    """
    scale = np.sqrt(np.linalg.det(matrix[:2, :2]))
    drawn = 2 * size if scale < 0.75 else size
    if scale < 0.5:  # cut out the surroundings of the face and reduce them
        corners = move(np.linalg.inv(matrix), size * np.array([(0, 0), (1, 0), (0, 1), (1, 1)]))
        end = np.array(image.shape[1::-1])
        start = np.clip(np.floor(corners.min(0) - 2 / scale), 0, end - 1).astype(int)
        stop = np.clip(np.ceil(corners.max(0) + 2 / scale), start + 1, end).astype(int)
        fewer = np.maximum(1, np.round((stop - start) * 2 * scale)).astype(int)
        image = cv2.resize(
            image[start[1] : stop[1], start[0] : stop[0]],
            fewer.tolist(),
            interpolation=cv2.INTER_AREA,
        )
        matrix = matrix @ scaling(*(stop - start) / fewer, *start)
    # OpenCV puts the centre of a pixel at whole numbers, everything else here at halves.
    matrix = (
        scaling(1, 1, -0.5, -0.5)
        @ scaling(drawn / size, drawn / size)
        @ matrix
        @ scaling(1, 1, 0.5, 0.5)
    )
    crop = cv2.warpAffine(
        image, matrix[:2], (drawn, drawn), flags=cv2.INTER_CUBIC, borderMode=cv2.BORDER_REPLICATE
    )
    return crop if drawn == size else cv2.resize(crop, (size, size), interpolation=cv2.INTER_AREA)


def detect(detector, small, image):
    """Returns boxes and scores (F, 5) in pixels of an image, found in a smaller copy."""
    detector.setInputSize(small.shape[1::-1])
    rows = detector.detect(small)[1]
    rows = np.zeros((0, 15)) if rows is None else rows.astype(float)
    zoom = np.array([image.shape[1] / small.shape[1], image.shape[0] / small.shape[0]])
    return np.hstack([rows[:, :2] * zoom, (rows[:, :2] + rows[:, 2:4]) * zoom, rows[:, 14:]])


def find_boxes(detector, image):
    """Returns boxes and scores (F, 5), best score first;
    faces of a third of the image are found in a small copy.
    """
    longest = max(image.shape[:2])
    fine = resize(image, min(max(longest, 224), 1280))
    boxes = detect(detector, fine, image)
    if longest > 448:
        large = detect(detector, resize(fine, 224), image)
        large = large[np.sqrt(np.prod(large[:, 2:4] - large[:, :2], axis=1)) > longest / 3]
        middle = (boxes[:, None, :2] + boxes[:, None, 2:4]) / 2
        within = ((large[:, :2] <= middle) & (middle <= large[:, 2:4])).all(2).any(1)
        boxes = np.vstack([large, boxes[~within]])
    return boxes[np.argsort(-boxes[:, 4], kind="stable")]


def find_landmarks(network, image, box):
    """Returns the landmarks (5, 2) of a face, and the logit that it is one: a look,
    then one at the upright face.
    """
    scale = 0.98 * 64 / max(box[2:4] - box[:2])
    matrix = scaling(scale, scale, *(32 - scale * (box[:2] + box[2:4]) / 2))
    for _ in range(2):
        cut = cv2.cvtColor(warp(image, matrix, 64), cv2.COLOR_BGR2GRAY).astype(np.float32)
        points, logits = [], []
        for view in (cut, cut[:, ::-1]):
            network.setInput(((view - view.mean()) / (view.std() + 2))[None, None])
            landmarks, logit = network.forward(["linear", "face"])
            points.append(landmarks.reshape(5, 2).astype(float) * 64)
            logits.append(float(logit[0, 0]))
        points[1] = points[1][[1, 0, 2, 4, 3]] * [-1, 1] + [64, 0]  # of the mirrored face
        points = move(np.linalg.inv(matrix), (points[0] + points[1]) / 2)
        matrix = similarity(points, LANDMARKS * 64)
    return points, np.mean(logits)


def place_regions(points, regions, size):
    """Returns boxes (R, 4) of regions in crop pixels, and whether each is in the crop (R,)."""
    across, down = points[1] - points[0], (points[3] + points[4] - points[0] - points[1]) / 2
    unit = max(np.hypot(*across), np.hypot(*down))
    x, y = across / np.hypot(*across)
    offsets, sides = (np.array([region[key] for region in regions]) for key in ("offset", "side"))
    centres = np.array(
        [points[region["anchors"]].mean(0) for region in regions]
    ) + unit * offsets @ [[x, y], [-y, x]]
    half = unit * sides[:, None] / 2
    valid = ((centres >= 0) & (centres < size)).all(1) & (2 * half[:, 0] >= 2)
    return np.hstack([centres - half, centres + half]).astype(np.float32), valid


def predict(photo, model, networks):
    """Yields the box (4,), the probability of each label,
    and the values of further heads for every face of a photo.
    """
    session = onnxruntime.InferenceSession(model)
    facts = json.loads(session.get_modelmeta().custom_metadata_map["fer_vit"])
    detector = cv2.FaceDetectorYN.create(f"{networks}/{DETECTOR}", "", (224, 224), 0.7)
    network = cv2.dnn.readNetFromONNX(f"{networks}/landmarks.onnx")
    image, size = cv2.imread(photo), facts["size"]  # BGR
    for box in find_boxes(detector, image):
        points, logit = find_landmarks(network, image, box)
        if box[4] < SURE and logit < DOUBT:
            continue
        matrix = similarity(points, np.array(facts["template"]) * size)
        crop = (
            warp(image, matrix, size)[..., ::-1].transpose(2, 0, 1)[None].astype(np.float32) / 255
        )
        boxes, valid = place_regions(move(matrix, points), [*facts["regions"].values()], size)
        inputs = {"image": crop, "boxes": boxes[None], "valid": valid[None]}
        names = [output.name for output in session.get_outputs()]
        results = dict(zip(names, session.run(names, inputs), strict=True))
        shares = dict(zip(facts["labels"], results["probabilities"][0].tolist(), strict=True))
        outputs = {}
        for head, columns in facts["heads"].items():
            outputs |= zip(columns["columns"], results[head][0].tolist(), strict=True)
        if "roll" in outputs:  # of the upright crop
            outputs["roll"] -= np.degrees(np.arctan2(matrix[1, 0], matrix[0, 0]))
        yield box[:4], shares, outputs


if __name__ == "__main__":
    for box, shares, outputs in predict(*sys.argv[1:]):
        print(json.dumps({"box": box.tolist(), "probabilities": shares, **outputs}))

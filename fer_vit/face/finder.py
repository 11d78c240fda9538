"""Finds faces in photos and frames, and cuts them out as a model needs them."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, NamedTuple

import numpy as np

import fer_vit.face.image as image_file
from fer_vit.face.crop import CropSpec, crop_face, face_matrix, place_regions
from fer_vit.face.detection import Detection, to_faces
from fer_vit.face.detectors import MAX_SIDE, Detector, NoDetector, is_photo
from fer_vit.faces import Crops, Faces, PhotoInfo
from fer_vit.geometry import Image

FaceMode = Literal["detect", "crop"]
IN_MEMORY = PhotoInfo("image")


class Search(NamedTuple):
    """A decoded photo and its faces."""

    image: Image  # (H, W, 3), perhaps a reduced copy of the photo
    reduction: int  # by what the sides of the photo were divided
    faces: Faces  # in pixels of the photo
    size: tuple[int, int]  # width and height of the photo in pixels


@dataclass(frozen=True)
class FaceFinder:
    """Finds faces and cuts them out.

    Attributes:
        spec: How a face becomes a model's input.
        mode: "detect" finds every face; "crop" takes an image as the crop of one face.
        detector: What finds the faces.
    """

    spec: CropSpec
    mode: FaceMode = "detect"
    detector: Detector = field(default_factory=NoDetector)

    def find(self, image: Image, info: PhotoInfo = IN_MEMORY) -> Faces:
        """Returns the faces of an image (H, W, 3) of the photo `info`, best score first."""
        return to_faces(info, self._detect(image))

    def _detect(self, image: Image) -> Sequence[Detection | None]:
        if not self.searches:
            return [self.detector.find_in_crop(image)]
        return self.detector.confirm(image, self.detector.find(image))

    @property
    def searches(self) -> bool:
        """Whether any number of faces is found in an image; otherwise each image is one face."""
        return self.mode == "detect" and self.detector.searches

    def search(self, image: Image, info: PhotoInfo) -> Search:
        """Finds the faces of a decoded photo (H, W, 3)."""
        height, width = image.shape[:2]
        return Search(image, 1, self.find(image, info), (width, height))

    def find_in_file(self, content: bytes, info: PhotoInfo = IN_MEMORY) -> Search:
        """Decodes a photo, reduced if it is large and its faces allow it, and finds its faces.

        Raises ImageError when the photo cannot be read.
        """
        if not self.searches:
            return self.search(image_file.decode_image(content), info)
        image_file.check_cost(content)  # refuses huge files before Pillow reads their header
        reduction = image_file.reduction_to(content, MAX_SIDE)
        image = image_file.decode_image(content, reduction, checked=True)
        faces = self.detector.find(image)

        # A face that becomes larger in its crop is cut from the full photo, because the reduced one
        # would blur it. Only photos of such faces are decoded twice. A reduced photo is decoded in
        # a third of the time.
        to_crops = [face_matrix(image, face.landmarks, self.spec, framed=False) for face in faces]
        enlarges = any(np.linalg.det(to_crop[:, :2]) > 1 for to_crop in to_crops)
        if reduction > 1 and enlarges:
            faces = [face.moved(reduction) for face in faces]  # to pixels of the full photo
            image = image_file.decode_image(content, checked=True)
            reduction = 1
        refined = [face.moved(reduction) for face in self.detector.confirm(image, faces)]
        size = image_file.size_of_photo(content, image, reduction)
        return Search(image, reduction, to_faces(info, refined), size)

    def shows_photo(self, image: Image) -> bool:
        """Returns whether an image that should be the crop of one face is probably a whole photo.

        Its face is small, or it has several faces.
        """
        return self.mode == "crop" and self.detector.searches and is_photo(self.detector, image)

    def crop(self, image: Image, faces: Faces, reduction: int = 1) -> Faces:
        """Returns faces with their crops.

        Args:
            image: The photo (H, W, 3), or a copy whose sides are divided by `reduction`.
            faces: The faces in pixels of the photo.
            reduction: By what the sides of the photo were divided; 1 for the photo itself.
        """
        if not len(faces):
            return faces
        images = []
        boxes = []
        valid = []
        to_crop = []
        for points in faces.landmarks:
            # Without landmarks (NaN), the whole image is the crop.
            landmarks = points / reduction if np.isfinite(points).all() else None
            cropped = crop_face(image, landmarks, self.spec, framed=self.mode == "crop")
            boxes_of_face, valid_of_face = place_regions(cropped.landmarks, self.spec)
            images.append(cropped.image)
            boxes.append(boxes_of_face)
            valid.append(valid_of_face)
            to_crop.append(cropped.to_crop)
        matrices = np.stack(to_crop)  # (N, 2, 3), from pixels of `image`
        matrices[:, :, :2] /= reduction  # from pixels of the photo
        crops = Crops(np.stack(images), np.stack(boxes), np.stack(valid), matrices)
        return replace(faces, crops=crops)

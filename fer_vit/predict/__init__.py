"""Photos and videos in, rows out.

The files in the order in which a photo, or a frame of a clip, passes through them:

- `inputs`: the files and images that a user names
- `photos`: the options of reading, the faces of one photo, and the photo of a face once more
- `frames`: the frames of a clip, with `hdr` for their colours and `shots` for the cuts; `camera`:
  live frames
- `video`: the faces in these frames, with the number of each person
- `reading`: several photos and clips in worker processes, as batches of faces with their crops
- `recognizer`: the predictions for the crops, with `computed` for blur and angles
- `smoothing`: the averages over time
- `tables`: the rows of one table; `table_folder`: a folder of tables; `outputs`: which files
- `people`: the times of each person, with `textgrid` for their intervals; `annotate`: a copy of a
  clip with its faces marked

`face_results`, `plot` and `explanations` are what Python gets besides.
"""

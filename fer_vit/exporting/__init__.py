"""Trained models for other programs.

This package is not called `export`: `fer_vit.export` is the public function, which would hide the
package.
"""

"""Networks that people run and torchvision does not have, written out: each class makes a whole model."""

from models.audio import ConvTasnet, EcapaTdnn, HifiGan, Wav2vec2Features, Wavenet
from models.classification import AlphaZero, CifarResnet18, ConvnextV2, Repvgg
from models.generators import ConvLstm, CycleGan, Dcgan, Pix2pix, Stylegan2
from models.localization import Hrnet, Segformer, Unet, Unet3d, Yolov8s
from models.restoration import Edsr, Esrgan, Nafnet

__all__ = [
    "AlphaZero", "CifarResnet18", "ConvLstm", "ConvTasnet", "ConvnextV2", "CycleGan", "Dcgan", "EcapaTdnn", "Edsr",
    "Esrgan", "HifiGan", "Hrnet", "Nafnet", "Pix2pix", "Repvgg", "Segformer", "Stylegan2", "Unet", "Unet3d",
    "Wav2vec2Features", "Wavenet", "Yolov8s",
]  # fmt: skip

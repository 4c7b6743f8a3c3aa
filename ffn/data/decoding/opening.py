"""Give a local file to FFmpeg: under no name, in formats of videos only, and within limits.

FFmpeg takes a name for more than a file: "cam1:front.ts" is an address of the protocol cam1,
"concat:a|b" two files, and "a%03d.gif" a pattern of names. It therefore reads a file by its
descriptor.
"""

from __future__ import annotations

import os
import struct
from typing import TYPE_CHECKING, BinaryIO

from ffn.data.decoding.video import VideoError
from ffn.limits import FRAME_PIXELS, VIDEO_FRAMES

if TYPE_CHECKING:
    import av

# FFmpeg's names of the formats that are read: of videos, pictures, and, to say that they have no
# video, sound. The others include texts that it would draw, or that name files to open.
FORMATS = (
    "3dostr,4xm,anm,apng,apv,asf,asf_o,av1,avi,avs,avs2,avs3,bethsoftvid,bfi,bink,bmv,c93,"
    "cavsvideo,cdg,cdxl,cine,dfa,dhav,dirac,dnxhd,dsicin,dv,dxa,ea,ea_cdata,evc,film_cpk,"
    "filmstrip,fits,flic,flv,frm,gdv,gif,gxf,h261,h263,h264,hevc,hnm,hxvs,idcin,iff,ifv,ipmovie,"
    "ipu,iv8,ivf,ivr,jpegxl_anim,jv,kux,lmlm4,luodat,lvf,lxf,m4v,matroska,mgsts,mjpeg,mjpeg_2000,"
    "mlv,mm,mods,moflex,mov,mpeg,mpegts,mpegtsraw,mpegvideo,mpjpeg,msnwctcp,mtv,mv,mvi,mxf,mxg,"
    "nc,nsv,nut,nuv,obu,paf,pdv,pmp,psxstr,pva,r3d,rl2,rm,roq,rpl,ser,sga,siff,simbiosis_imx,"
    "smjpeg,smk,smush,swf,thp,tiertexseq,tmv,ty,usm,vc1,vc1test,vividas,vivo,vmd,vvc,wc3movie,"
    "webm,webp,webp_anim,wsvqa,wtv,xmv,yop,yuv4mpegpipe,bmp_pipe,j2k_pipe,jpeg_pipe,jpegxl_pipe,"
    "png_pipe,ppm_pipe,tiff_pipe,webp_pipe,aac,ac3,aiff,amr,ape,au,caf,dts,eac3,flac,mp3,ogg,tta,"
    "w64,wav,wv"
)
_PARENTS = (b"moov", b"trak", b"mdia", b"minf", b"stbl", b"moof", b"traf")
_COUNTS = {b"stsz": 8, b"stz2": 8, b"trun": 4}  # place of the number of samples


def open_local(path: str) -> av.container.InputContainer:
    """Open a local file.

    Raises:
        VideoError: if it is not a regular file, not a video, or exceeds a limit.
    """
    if not os.path.exists(path):
        raise VideoError(path, "no such file or folder")
    if not os.path.isfile(path):
        raise VideoError(path, "not a regular file")
    if os.path.getsize(path) == 0:
        raise VideoError(path, "the file is empty (0 bytes)")
    import av  # not at import: only decoding needs it

    options = {
        "protocol_whitelist": "fd",  # no addresses inside of a file
        "format_whitelist": FORMATS,
        "max_pixels": str(FRAME_PIXELS.value),
    }
    try:
        with open(path, "rb") as file:
            if refusal := _samples_refusal(file):
                raise VideoError(path, refusal)
            os.lseek(file.fileno(), 0, os.SEEK_SET)  # behind the buffer
            options["fd"] = str(file.fileno())  # is duplicated
            return av.open("fd:", metadata_errors="ignore", options=options)
    except av.error.ArgumentError:
        raise VideoError(path, "not a video, or a format that is not read") from None
    except (av.error.FFmpegError, OSError, ValueError) as error:
        cause = f"not a video, or truncated before its index ({ffmpeg_message(error)})"
        raise VideoError(path, cause) from None


def ffmpeg_message(error: Exception) -> str:
    """FFmpeg's message, without error number and path."""
    return getattr(error, "strerror", None) or type(error).__name__


def _samples_refusal(file: BinaryIO) -> str:
    """Why FFmpeg may not read the sample tables of an mp4 or mov file; empty if it may.

    It fills a table of as many entries as a number in the file says. Any sample has a byte of the
    file, but for compressed sound of old QuickTime.
    """
    size = os.fstat(file.fileno()).st_size
    count = _count_samples(file, 0, size)
    return VIDEO_FRAMES.refusal(count) if count > size else ""


def _count_samples(file: BinaryIO, start: int, end: int, depth: int = 0) -> int:
    """The sum of the numbers of samples in the tables of the boxes between two positions."""
    total = 0
    while start + 8 <= end and depth < len(_PARENTS):
        file.seek(start)
        size, kind = struct.unpack(">I4s", file.read(8))
        if size == 1:
            size = int.from_bytes(file.read(8), "big")
        content, start = file.tell(), start + (size or end - start)
        if start < content:
            break
        if kind in _PARENTS:
            total += _count_samples(file, content, min(start, end), depth + 1)
        elif kind in _COUNTS:
            file.seek(content + _COUNTS[kind])
            total += int.from_bytes(file.read(4), "big")
    return total

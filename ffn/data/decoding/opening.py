"""Give a local file to FFmpeg: under no name, in formats of videos only, and within limits.

FFmpeg takes a name for more than a file: "cam1:front.ts" is an address of the protocol cam1,
"concat:a|b" two files, and "a%03d.gif" a pattern of names. It therefore reads a file by its
descriptor.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from functools import partial
from struct import unpack
from typing import TYPE_CHECKING

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
    try:
        info = os.stat(path)
    except (OSError, ValueError):
        raise VideoError(path, "no such file or folder") from None
    if not stat.S_ISREG(info.st_mode):
        raise VideoError(path, "not a regular file")
    if info.st_size == 0:
        raise VideoError(path, "the file is empty (0 bytes)")
    import av  # not at import: only decoding needs it

    options = {
        "protocol_whitelist": "fd",  # no addresses inside of a file
        "format_whitelist": FORMATS,
        "max_pixels": str(FRAME_PIXELS.value),
    }
    try:
        with open(path, "rb", buffering=0) as file:
            # FFmpeg fills a table of as many entries as a number in the file says. Any sample has a
            # byte of the file, but for compressed sound of old QuickTime.
            count = _count_samples(partial(os.pread, file.fileno()), info.st_size)
            if count > info.st_size and (refusal := VIDEO_FRAMES.refusal(count)):
                raise VideoError(path, refusal)
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


def _count_samples(read: Callable[[int, int], bytes], end: int, depth: int = 0) -> int:
    """The sum of the numbers of samples in the tables of the boxes of an mp4 or mov file.

    Args:
        read: Bytes of the boxes, of a length from a position on.
        end: Where the boxes end; bytes behind it may follow.
        depth: Number of boxes around them.
    """
    total, start = 0, 0
    while start + 8 <= end and depth < len(_PARENTS):
        size, kind, larger = unpack(">I4sQ", bytes(read(16, start)).ljust(16, b"\0"))
        head, size = (16, larger) if size == 1 else (8, size or end - start)
        content, start = start + head, start + size
        if start < content:
            break
        if kind in _PARENTS:
            inside = memoryview(read(min(start, end) + 16 - content, content))
            total += _count_samples(
                lambda count, at, data=inside: data[at : at + count],
                *(min(start, end) - content, depth + 1),
            )
        elif kind in _COUNTS:
            total += int.from_bytes(read(4, content + _COUNTS[kind]), "big")
    return total

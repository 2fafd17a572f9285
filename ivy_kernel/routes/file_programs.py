"""Access to a sandbox's files by small Python programs, each of which is one tool call.

Each walks from the root one directory at a time, by descriptors that refuse links, touches only
regular files, and prints one frame as the agent does; none needs the agent, whose one thread is
busy with cells. Those that write may be run again after an outcome that is not known.
"""

from __future__ import annotations

import zlib
from base64 import b64encode
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ivy_kernel.errors import (
    AnswerError,
    BadRequestError,
    RouteError,
    UnexpectedStatusError,
)
from ivy_kernel.routes.agent.frames import (
    AgentResponse,
    AgentUnresponsiveError,
    NoAgentError,
    TruncatedError,
    read_response,
)
from ivy_kernel.routes.agent.programs import BEGIN, END, new_call_id
from ivy_kernel.routes.tools import SandboxTools

CALL_SECONDS = 110.0
"""Time budget of a call; a script may take 120 s."""
LARGE_CODE_CHARS = 12_000
"""Code above this may have been refused for its length: a fifth of it may be accepted."""
_LINE_CHARS = 4000

_CARRIER = """_ivy_d='''{data}'''
exec(compile({program!r},'ivy','exec'),{{'__name__':'ivy','data':_ivy_d}})
del _ivy_d
"""
"""Flat code, which any runner executes alike; the program within has a namespace of its own."""

_BASE = r"""
import os,stat,zlib
from binascii import a2b_base64,b2a_base64
D=os.O_RDONLY|os.O_DIRECTORY|os.O_NOFOLLOW|os.O_CLOEXEC
F=os.O_NOFOLLOW|os.O_NONBLOCK|os.O_CLOEXEC
class Fail(Exception):
    pass
def answer(head,body=b''):
    raw=head.encode('ascii','backslashreplace')+b'\n'+body
    probe=raw[:16384]
    raw=zlib.compress(raw,1 if len(zlib.compress(probe,1))<len(probe)*.8 else 0)
    text=b2a_base64(raw,newline=False).decode()
    text='\n'.join([text[i:i+4000] for i in range(0,len(text),4000)])
    print('\n%s%s\n%d.%x.\n%s\n%s%s'%(BEGIN,ID,len(raw),zlib.crc32(raw),text,END,ID),flush=True)
def say(value,body=b''):
    import json
    text=json.dumps(value).encode()
    answer('{"json":%d}'%len(text),text+body)
def step(fd,name,make=0):
    try:
        return os.open(name,D,dir_fd=fd)
    except FileNotFoundError:
        if not make: raise
    except OSError:
        if stat.S_ISLNK(os.lstat(name,dir_fd=fd).st_mode): raise Fail('link',name)
        raise
    try: os.mkdir(name,dir_fd=fd)
    except FileExistsError: pass
    return os.open(name,D,dir_fd=fd)
def walk(names,make=0):
    fd=os.open(ROOT,os.O_RDONLY|os.O_DIRECTORY|os.O_CLOEXEC)
    for name in names:
        try: below=step(fd,name,make)
        finally: os.close(fd)
        fd=below
    return fd
def regular(fd,name,flags=os.O_RDONLY):
    try: f=os.open(name,flags|F,0o600,dir_fd=fd)
    except OSError:
        try: mode=os.lstat(name,dir_fd=fd).st_mode
        except OSError: mode=stat.S_IFREG
        if stat.S_ISLNK(mode): raise Fail('link',name)
        if not stat.S_ISREG(mode): raise Fail('kind',name)
        raise
    if not stat.S_ISREG(os.fstat(f).st_mode):
        os.close(f)
        raise Fail('kind',name)
    return f
def row(fd,name,path):
    s=os.lstat(name,dir_fd=fd)
    m=s.st_mode
    kind='f' if stat.S_ISREG(m) else 'd' if stat.S_ISDIR(m) else 'l' if stat.S_ISLNK(m) else 'o'
    can=0 if kind=='l' else int(os.access(name,os.W_OK,dir_fd=fd))
    return [path,kind,s.st_size if kind=='f' else 0,s.st_mtime,can]
def row_of(names):
    if not names: return row(None,ROOT,'')
    fd=walk(names[:-1])
    return row(fd,names[-1],'/'.join(names))
def version(f):
    s=os.fstat(f)
    return [s.st_size,'%d-%d'%(s.st_mtime_ns,s.st_ino)]
def pull(f,offset,size):
    out=[]
    while size>0:
        b=os.pread(f,min(size,1<<20),offset)
        if not b: break
        out.append(b)
        offset,size=offset+len(b),size-len(b)
    return b''.join(out)
def push(f,offset,b):
    b=memoryview(b)
    while b:
        n=os.pwrite(f,b,offset)
        offset,b=offset+n,b[n:]
def fill(f,to,at):
    n,b=0,1
    while b:
        b=os.pread(f,1<<20,n)
        push(to,at+n,b)
        n+=len(b)
def unpack(size,crc):
    b=a2b_base64(data)
    if A['packs']: b=zlib.decompress(b)
    if len(b)!=size or zlib.crc32(b)!=crc: raise Fail('damaged','')
    return b
def place(fd,part,name,overwrite,mode):
    try: old=os.lstat(name,dir_fd=fd).st_mode
    except FileNotFoundError: old=None
    if old is not None:
        if stat.S_ISLNK(old): raise Fail('link',name)
        if not stat.S_ISREG(old): raise Fail('kind',name)
        mode=stat.S_IMODE(old)
    try: os.chmod(part,mode,dir_fd=fd)
    except OSError: pass
    if overwrite:
        os.rename(part,name,src_dir_fd=fd,dst_dir_fd=fd)
        return
    try: os.link(part,name,src_dir_fd=fd,dst_dir_fd=fd,follow_symlinks=False)
    except FileExistsError: raise
    except OSError:
        os.close(os.open(name,os.O_WRONLY|os.O_CREAT|os.O_EXCL|F,0o600,dir_fd=fd))
        os.rename(part,name,src_dir_fd=fd,dst_dir_fd=fd)
    else: os.unlink(part,dir_fd=fd)
def failed(e,name=''):
    if isinstance(e,Fail): return {'fail':e.args[0],'name':e.args[1]}
    return {'fail':'os','errno':e.errno or 0,'name':name or str(e.filename or ''),'said':e.strerror}
"""
"""Where a file system has no hard links, ``place`` reserves the name first: exclusive as well."""

_PROBE = """
def work(): say({'root':os.getcwd()})
"""

_ENTRY = """
def work(): say(row_of(A['parts']))
"""

_ENTRIES = """
import re
def work():
    top,limit=A['parts'],A['limit']
    found,more,todo=[],False,[tuple(top)]
    want=A['match'] and re.compile(A['match'])
    if top:
        first=row_of(top)
        if first[1]!='d':
            say([[first],False])
            return
    while todo and not more:
        names=todo.pop()
        try: fd=walk(names)
        except (OSError,Fail):
            if names==tuple(top): raise
            continue
        below=[]
        with os.scandir(fd) as items:
            for item in items:
                path='/'.join(names+(item.name,))
                is_dir=item.is_dir(follow_symlinks=False)
                if is_dir: below.append(names+(item.name,))
                if want and not want.match(path): continue
                if len(found)>=limit:
                    more=True
                    break
                try: found.append(row(fd,item.name,path))
                except OSError: pass
        os.close(fd)
        if A['recursive']: todo.extend(below)
    say([found,more])
"""

_READ = """
def work():
    fd=walk(A['parts'][:-1])
    f=regular(fd,A['parts'][-1])
    b=pull(f,A['offset'],A['limit'])
    v=version(f)
    answer('{"size":%d,"stamp":"%s"}'%(v[0],v[1]),b)
"""

_FETCH = """
def work():
    room,heads,out=A['limit'],[],[]
    for names in A['files']:
        try:
            fd=walk(names[:-1])
            try: f=regular(fd,names[-1])
            finally: os.close(fd)
            try:
                size=os.fstat(f).st_size
                if size>room and heads: break
                b=pull(f,0,room+1)
                heads.append([len(b)]+version(f))
            finally: os.close(f)
            out.append(b)
            room-=len(b)
        except (Fail,OSError) as e: heads.append(failed(e,names[-1]))
    say({'files':heads},b''.join(out))
"""

_STORE = """
def work():
    b,at,ends=unpack(A['size'],A['crc']),0,[]
    for names,size,mode in A['files']:
        try: ends.append(one(names,b[at:at+size],mode))
        except (Fail,OSError) as e: ends.append(failed(e,names[-1]))
        at+=size
    say({'files':ends})
def same(fd,name,b):
    try: f=regular(fd,name)
    except OSError: return False
    try: return os.fstat(f).st_size==len(b) and pull(f,0,len(b)+1)==b
    finally: os.close(f)
def one(names,b,mode):
    fd=walk(names[:-1],1)
    try:
        name,part=names[-1],A['part']
        if same(fd,name,b): return 'equal'
        there=os.access(name,os.F_OK,dir_fd=fd,follow_symlinks=False)
        if there and not A['overwrite']: raise FileExistsError(17,'',name)
        try: os.unlink(part,dir_fd=fd)
        except FileNotFoundError: pass
        f=os.open(part,os.O_WRONLY|os.O_CREAT|os.O_EXCL|F,0o600,dir_fd=fd)
        try:
            try: push(f,0,b)
            finally: os.close(f)
            place(fd,part,name,A['overwrite'],mode)
        except BaseException:
            try: os.unlink(part,dir_fd=fd)
            except OSError: pass
            raise
        return 'written'
    finally: os.close(fd)
"""

_JOIN = """
def join(fd,part,f,names):
    for name in names:
        try: g=regular(fd,name)
        except FileNotFoundError: continue
        try: fill(g,f,int(name[len(part)+1:]))
        finally: os.close(g)
        try: os.unlink(name,dir_fd=fd)
        except FileNotFoundError: pass
def pieces(fd,part):
    return [n for n in os.listdir(fd) if n[:len(part)+1]==part+'-' and n[len(part)+1:].isdigit()]
"""

_BEGIN = """
def work():
    import re,time
    names,part=A['parts'],A['part']
    try: fd=walk(names[:-1],A['create'])
    except FileNotFoundError:
        room=os.statvfs(ROOT)
        say({'final':None,'part':0,'free':room.f_bavail*room.f_frsize})
        return
    for name in os.listdir(fd):
        if name[:len(part)]!=part and re.fullmatch(A['stale'],name):
            try:
                age=time.time()-os.lstat(name,dir_fd=fd).st_mtime
                if age>A['seconds']: os.unlink(name,dir_fd=fd)
            except OSError: pass
    try: final=row(fd,names[-1],'/'.join(names))
    except FileNotFoundError: final=None
    had=0
    try: f=regular(fd,part,os.O_RDWR|(os.O_CREAT if A['create'] else 0))
    except FileNotFoundError: pass
    else:
        if A['create']:
            os.utime(f)
            join(fd,part,f,pieces(fd,part))
        had=os.fstat(f).st_size
    room=os.fstatvfs(fd)
    say({'final':final,'part':had,'free':room.f_bavail*room.f_frsize})
"""

_WRITE = """
def work():
    b=unpack(A['size'],A['crc'])
    f=regular(walk(A['parts'][:-1]),A['part'],os.O_RDWR)
    push(f,A['offset'],b)
    answer('{"n":%d}'%len(b))
"""

_GATHER = """
def work():
    fd=walk(A['parts'][:-1])
    f=regular(fd,A['part'],os.O_RDWR)
    join(fd,A['part'],f,['%s-%d'%(A['part'],at) for at in A['at']])
    answer('{}')
"""

_HASHES = """
from hashlib import sha256
def work():
    f=regular(walk(A['parts'][:-1]),A['parts'][-1])
    at,out=A['start'],[]
    while at<A['end']:
        h,until=sha256(),min(at+A['step'],A['end'])
        while at<until:
            b=os.pread(f,min(until-at,1<<20),at)
            if not b: break
            h.update(b)
            at+=len(b)
        out.append(h.digest())
        if at<until: break
    v=version(f)
    answer('{"size":%d,"stamp":"%s"}'%(v[0],v[1]),b''.join(out))
"""

_FINISH = """
def work():
    names,part=A['parts'],A['part']
    fd=walk(names[:-1])
    f=regular(fd,part,os.O_RDWR)
    os.ftruncate(f,A['size'])
    os.fsync(f)
    place(fd,part,names[-1],A['overwrite'],A['mode'])
    for name in pieces(fd,part): os.unlink(name,dir_fd=fd)
    try: os.fsync(fd)
    except OSError: pass
    say(row_of(names))
"""

_REMOVE = """
def work():
    name,fd=A['parts'][-1],walk(A['parts'][:-1])
    if not A['recursive'] and stat.S_ISDIR(os.lstat(name,dir_fd=fd).st_mode):
        os.rmdir(name,dir_fd=fd)
        say({'n':0})
    else: say({'n':wipe(fd,name)})
def wipe(fd,name):
    if not stat.S_ISDIR(os.lstat(name,dir_fd=fd).st_mode):
        os.unlink(name,dir_fd=fd)
        return 1
    d,n=step(fd,name),0
    try:
        for each in os.listdir(d): n+=wipe(d,each)
    finally: os.close(d)
    os.rmdir(name,dir_fd=fd)
    return n
"""

_RENAME = """
def work():
    old,new=A['parts'],A['new']
    if new[:len(old)]==old and new!=old: raise Fail('inside',old[-1])
    fd,to=walk(old[:-1]),walk(new[:-1])
    a,b=os.lstat(old[-1],dir_fd=fd),None
    try: b=os.lstat(new[-1],dir_fd=to)
    except FileNotFoundError: pass
    same=b and (a.st_dev,a.st_ino)==(b.st_dev,b.st_ino)
    if b and not same and not A['overwrite']: raise FileExistsError(17,'',new[-1])
    if b or not stat.S_ISREG(a.st_mode):
        os.rename(old[-1],new[-1],src_dir_fd=fd,dst_dir_fd=to)
    else:
        try: os.link(old[-1],new[-1],src_dir_fd=fd,dst_dir_fd=to,follow_symlinks=False)
        except FileExistsError: raise
        except OSError: os.rename(old[-1],new[-1],src_dir_fd=fd,dst_dir_fd=to)
        else: os.unlink(old[-1],dir_fd=fd)
    say(row_of(new))
"""

_COPY = """
def work():
    old,new,part=A['parts'],A['new'],A['part']
    f,fd=regular(walk(old[:-1]),old[-1]),walk(new[:-1])
    t=os.open(part,os.O_WRONLY|os.O_CREAT|os.O_EXCL|F,0o600,dir_fd=fd)
    try:
        fill(f,t,0)
        place(fd,part,new[-1],0,stat.S_IMODE(os.fstat(f).st_mode))
    except BaseException:
        try: os.unlink(part,dir_fd=fd)
        except OSError: pass
        raise
    say(row_of(new))
"""

_MAKE = """
def work():
    walk(A['parts'],1)
    say(row_of(A['parts']))
"""

PROGRAMS = {
    "probe": _PROBE,
    "entry": _ENTRY,
    "entries": _ENTRIES,
    "read": _READ,
    "fetch": _FETCH,
    "store": _STORE,
    "begin": _JOIN + _BEGIN,
    "write": _WRITE,
    "gather": _JOIN + _GATHER,
    "hashes": _HASHES,
    "finish": _JOIN + _FINISH,
    "remove": _REMOVE,
    "rename": _RENAME,
    "copy": _COPY,
    "make": _MAKE,
}
_END = """
try: work()
except (Fail,OSError) as e: say(failed(e))
"""


class TooLargeError(Exception):
    """Raised when a call carries more than the platform takes; fewer bytes may go through."""


@dataclass(frozen=True, slots=True)
class Call:
    """One call of a program: its random id, and its code."""

    call_id: str
    code: str


def program(
    name: str, arguments: Mapping[str, Any], *, data: bytes | None = None, root: str = ""
) -> Call:
    """Return the call of a program.

    Parameters
    ----------
    name, arguments
        Which one, and what it reads as ``A``: plain values, which go as Python literals.
    data
        Bytes for it; ``size`` and ``crc`` tell it what they were.
    root
        The root's path; empty for where the tool starts.
    """
    values, text, call_id = dict(arguments), "", new_call_id()
    if data is not None:
        sample = data[len(data) // 2 :][:16384]
        packs = len(zlib.compress(sample, 1)) < len(sample) * 0.8
        values.update(size=len(data), crc=zlib.crc32(data), packs=packs)
        text = b64encode(zlib.compress(data, 1) if packs else data).decode("ascii")
        if len(text) > _LINE_CHARS:  # one huge line breaks runners that read by lines
            lines = range(0, len(text), _LINE_CHARS)
            text = "\n".join([text[at : at + _LINE_CHARS] for at in lines])
    names = f"ID={call_id!r}\nBEGIN={BEGIN!r}\nEND={END!r}\nROOT={root or '.'!r}\n"
    whole = f"{names}A={values!a}\n{_BASE}{PROGRAMS[name]}{_END}"
    return Call(call_id, _CARRIER.format(data=text, program=whole))


async def run(tools: SandboxTools, tool: str, call: Call) -> AgentResponse:
    """Run a program once.

    Raises
    ------
    TooLargeError
        When the call, or its answer, was perhaps too large for the platform.
    IvyError
        As `SandboxTools.run`.
    """
    is_large = len(call.code) > LARGE_CODE_CHARS
    try:
        result = await tools.run(tool, call.code, CALL_SECONDS, retry=False)
    except (BadRequestError, RouteError, UnexpectedStatusError) as error:
        if is_large and getattr(error, "status_code", 400) in (400, 413):
            raise TooLargeError(str(error)) from error
        raise
    except AnswerError as error:
        raise TooLargeError(str(error)) from error  # larger than response_limit_bytes, or cut
    try:
        return read_response(result, call.call_id)
    except TruncatedError as error:
        raise TooLargeError(str(error)) from error
    except (NoAgentError, AgentUnresponsiveError) as error:
        raise AnswerError(f"The sandbox's Python answered without a result: {error}") from error
    except AnswerError as error:
        if is_large:  # longer, perhaps, than an argument of a command may be
            raise TooLargeError(str(error)) from error
        raise

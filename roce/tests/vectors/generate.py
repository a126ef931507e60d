"""Writes packets.txt: packets built by scapy's contrib.roce layer, which computes the ICRC on its own.

Run with scapy 2.6 or later (earlier ones have no ICRC over IPv6): python3 generate.py > packets.txt
One packet a line: name and the whole IP packet in hexadecimal. The fields that routers may change hold odd values on
purpose.
"""

import struct

import scapy
from scapy.contrib.roce import BTH
from scapy.layers.inet import IP, UDP
from scapy.layers.inet6 import IPv6
from scapy.packet import Raw


def v4(**fields):
    return IP(src="192.0.2.1", dst="198.51.100.2", **fields)


def v6(**fields):
    return IPv6(src="2001:db8::1", dst="fe80::2:3", **fields)


def show(name, ip, sport, bth, rest):
    packet = ip / UDP(sport=sport, dport=4791) / BTH(pkey=0xFFFF, **bth) / Raw(rest)
    print(name, bytes(packet).hex())


print("# scapy", scapy.__version__)
show("v4_send_only", v4(id=0, flags="DF"), 0xC123,
     dict(opcode=0x04, padcount=3, dqpn=0x12345, psn=0xFFFFFF, ackreq=1, solicited=1), b"hello\0\0\0")
show("v4_send_middle_1024", v4(id=0xFFFF, flags="DF"), 0xC004,
     dict(opcode=0x01, dqpn=0x1234, psn=4), bytes(i * i & 255 for i in range(1024)))
show("v4_write_only_with_imm", v4(id=0xBEEF, flags="DF", ttl=3, tos=0xB8), 0xFFFF,
     dict(opcode=0x0B, dqpn=0xFFFFFE, psn=1, migreq=1),
     struct.pack("!QII", 0x7F0011223344, 0x01020304, 8) + b"\xde\xad\xbe\xef" + bytes(range(8)))
show("v4_read_request", v4(id=7, flags="DF"), 0xD00D,
     dict(opcode=0x0C, dqpn=0x42, psn=0x100, ackreq=1), struct.pack("!QII", 2**64 - 4096, 0xFFFFFFFF, 1 << 31))
show("v4_ack_may_fragment", v4(id=0x1234, ttl=255, tos=2), 0xC000,
     dict(opcode=0x11, dqpn=0x11, psn=0x777777, fecn=1), bytes([0x1F, 0, 0, 5]))
show("v4_atomic_ack", v4(id=1, flags="DF"), 0xC000,
     dict(opcode=0x12, dqpn=0x12, psn=0x10), bytes([0x00, 1, 2, 3]) + struct.pack("!Q", 0x0123456789ABCDEF))
show("v4_cnp", v4(id=1, flags="DF"), 0xE000, dict(opcode=0x81, dqpn=0xABC, becn=1), bytes(16))
show("v6_compare_swap", v6(tc=0x2E, fl=0x12345, hlim=1), 0xC001,
     dict(opcode=0x13, dqpn=0x99, psn=0x800000),
     struct.pack("!QIQQ", 0x1000, 0xAABBCCDD, 0x1122334455667788, 0x99AABBCCDDEEFF00))
show("v6_ud_send_only_with_imm", v6(), 0xC002,
     dict(opcode=0x65, padcount=1, dqpn=1, psn=2, becn=1), struct.pack("!II", 0x80010000, 1) + b"\1\2\3\4" + b"abc\0")
show("v6_send_only_with_invalidate", v6(hlim=64), 0xC005,
     dict(opcode=0x17, dqpn=0x1234, psn=9, ackreq=1), struct.pack("!I", 0xCAFEF00D) + b"data")
show("v6_uc_write_middle_256", v6(tc=1, fl=0xFFFFF), 0xC003,
     dict(opcode=0x27, dqpn=0x1234, psn=3), bytes(7 * i + 3 & 255 for i in range(256)))
show("v4_xrc_send_first_256", v4(id=2, flags="DF"), 0xC006,
     dict(opcode=0xA0, dqpn=0x1234, psn=5), struct.pack("!I", 0xABCDEF) + bytes(i ^ 0x55 for i in range(256)))
show("v4_xrc_write_only_with_imm", v4(id=3, flags="DF"), 0xC007,
     dict(opcode=0xAB, dqpn=0x1234, psn=6, ackreq=1),
     struct.pack("!IQII", 0x12, 0x7F0011223344, 0x01020304, 8) + b"\1\2\3\4" + bytes(range(8)))
show("v6_xrc_fetch_add", v6(), 0xC008,
     dict(opcode=0xB4, dqpn=0x1234, psn=7, ackreq=1), struct.pack("!IQIQQ", 0xFFFFFE, 0x2000, 0xAABBCCDD, 1, 0))
show("v6_xrc_ack", v6(), 0xC009, dict(opcode=0xB1, dqpn=0x1234, psn=8), bytes([0x1F, 0, 0, 9]))

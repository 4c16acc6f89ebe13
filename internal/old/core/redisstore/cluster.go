package redisstore

import (
	"bytes"
)

// hashSlots is the number of hash slots of a cluster.
const hashSlots = 16384

// hashSlotOf returns the hash slot of a name that ends with its hash tag: CRC-16/XMODEM
// of what is in the braces, as in the Redis Cluster specification. What the namer puts
// there is not empty and has no brace.
func hashSlotOf(tag []byte) int {
	tag = tag[bytes.IndexByte(tag, '{')+1 : len(tag)-1]
	var crc uint16
	for _, b := range tag {
		crc ^= uint16(b) << 8
		for range 8 {
			if crc&0x8000 != 0 {
				crc = crc<<1 ^ 0x1021
			} else {
				crc <<= 1
			}
		}
	}
	return int(crc) % hashSlots
}

// hashSlot returns the hash slot of a key.
func (b *backend) hashSlot(key string) int {
	var room [64]byte
	return hashSlotOf(b.names.tag(room[:0], key))
}

package redisstore

import "github.com/headgate/headgate/internal/rediskey"

// hashSlot returns the hash slot of a key.
func (b *backend) hashSlot(key string) int {
	var room [64]byte
	return rediskey.HashSlot(b.names.AppendTag(room[:0], key))
}

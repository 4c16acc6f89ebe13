// Package plans finds what a document gives to a plan and a key: policies of a limiter, or a number of slots.
//
// A Table looks in this order, and the first that holds now is the answer. A key 203.0.113.7 of the plan gold is looked
// up as:
//
//	keys      203.0.113.7                         one look into a map
//	networks  203.0.113.7/32, /28, /24, ...       one for each length that an override has, the longest first
//	prefixes  203.0.113., 203., ...               the same; none if no prefix begins with this byte
//	plans     gold, else the default              an unknown plan is the default
//
// So the time is that of a few maps, however many overrides there are, and nothing is allocated.
package plans

import (
	"encoding/binary"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"
)

// A Table has the plans of one name, and the overrides of keys. It does not change once it is asked.
type Table[T any] struct {
	standard T
	plans    map[string]T
	keys     map[string]override[T]
	networks map[network]override[T]
	prefixes map[string]override[T]

	bits4, bits6, lengths []int     // of networks and prefixes, the longest first
	isFirstByte           [256]bool // of a prefix, so that most keys need no look at any
}

// An override is what some keys get instead of their plan, while it holds.
type override[T any] struct {
	value       T
	from, until int64 // microseconds; 0: no bound
}

// NewTable returns a table without overrides. The map of plans is kept, not copied.
func NewTable[T any](standard T, plans map[string]T) *Table[T] {
	return &Table[T]{
		standard: standard, plans: plans, keys: map[string]override[T]{}, networks: map[network]override[T]{},
		prefixes: map[string]override[T]{},
	}
}

// All returns what all plans give.
func (t *Table[T]) All() []T { return slices.Collect(maps.Values(t.plans)) }

// Key, Network and Prefix add an override, which applies from one instant until before another. Instants of 0 are no
// bounds. They are for whoever makes the table, before anybody asks it. Key, network and prefix must not be empty, and
// an override for the same one takes the place of the former.
func (t *Table[T]) Key(key string, value T, from, until int64) {
	t.keys[key] = override[T]{value, from, until}
}

// Network is described with Key. Bits of the address beyond its length do not count.
func (t *Table[T]) Network(n netip.Prefix, value T, from, until int64) {
	t.networks[networkOf(n.Addr(), n.Bits())] = override[T]{value, from, until}
	if n.Addr().Is4() {
		longestFirst(&t.bits4, n.Bits())
	} else {
		longestFirst(&t.bits6, n.Bits())
	}
}

// Prefix is described with Key.
func (t *Table[T]) Prefix(prefix string, value T, from, until int64) {
	t.prefixes[prefix] = override[T]{value, from, until}
	t.isFirstByte[prefix[0]] = true
	longestFirst(&t.lengths, len(prefix))
}

// longestFirst adds a length, unless it is there.
func longestFirst(all *[]int, n int) {
	i, found := slices.BinarySearchFunc(*all, n, func(a, b int) int { return b - a })
	if !found {
		*all = slices.Insert(*all, i, n)
	}
}

// Find returns what applies to a key of a request of that plan: the override of the key, of the longest network
// around it, or of its longest prefix; or else the plan, or the default.
func (t *Table[T]) Find(plan, key string) T {
	override, ok := t.keys[key]
	if ok && override.holds() {
		return override.value
	}
	// Only a key that begins as an address does is read as one, which takes longer than to look.
	if len(t.networks) > 0 && t.mayBeAddress(key) {
		if v, ok := t.around(key); ok {
			return v
		}
	}
	if key != "" && t.isFirstByte[key[0]] {
		for _, n := range t.lengths {
			if n <= len(key) {
				o, ok := t.prefixes[key[:n]]
				if ok && o.holds() {
					return o.value
				}
			}
		}
	}
	if plan != "" {
		if v, ok := t.plans[plan]; ok {
			return v
		}
	}
	return t.standard
}

// mayBeAddress reports whether a key may be an address of a kind of which there are networks. Few other keys may. An
// address of IPv4 has a dot in its first four bytes, and one of IPv6 a colon in its first five.
func (t *Table[T]) mayBeAddress(key string) bool {
	if len(key) < 2 || key[0] > 'f' {
		return false
	}
	for i := range min(len(key), 5) {
		switch key[i] {
		case '.':
			return t.bits4 != nil
		case ':':
			return t.bits6 != nil
		}
	}
	return false
}

// around returns the override of the longest network around a key that is an address, or a network.
func (t *Table[T]) around(key string) (v T, ok bool) {
	address, most, ok := Address(key)
	if !ok {
		return v, false
	}
	bits := t.bits4
	if address.Is6() {
		bits = t.bits6
	}
	for _, n := range bits {
		if n > most {
			continue
		}
		override, ok := t.networks[networkOf(address, n)]
		if ok && override.holds() {
			return override.value, true
		}
	}
	return v, false
}

// A network is a netip.Prefix that takes half the time in a map. An address of IPv4 is kept as ::ffff:203.0.113.7, in
// which its bits are the last 32. So that it differs from that address of IPv6, its length is 256 and more.
type network struct{ high, low, bits uint64 }

// networkOf returns the network of that many bits around an address.
func networkOf(address netip.Addr, bits int) network {
	b := address.As16()
	n := network{binary.BigEndian.Uint64(b[:8]), binary.BigEndian.Uint64(b[8:]), uint64(bits)}
	if address.Is4() {
		n.bits += 256 // which no network of IPv6 has
		bits += 96
	}
	// A shift by 64 leaves nothing, so a network of 64 bits or fewer has no low half, and one of 0 bits nothing at all.
	n.high &= ^uint64(0) << max(64-bits, 0)
	n.low &= ^uint64(0) << min(128-bits, 64)
	return n
}

// holds reports whether an override applies now. The clock is that of this server, and is read only for an override
// that has a bound.
func (o *override[T]) holds() bool {
	if o.from|o.until == 0 {
		return true
	}
	now := time.Now().UnixMicro()
	return now >= o.from && (o.until == 0 || now < o.until)
}

// Address reads a key that is an address or a network, as package keyfuncs makes them: 203.0.113.7, 2001:db8::/64.
// It allocates nothing for keys that are none, as the errors of netip do.
func Address(key string) (address netip.Addr, bits int, ok bool) {
	text, length, isNetwork := strings.Cut(key, "/")
	address, ok = fourBytes(text)
	if !ok {
		// The longest address of IPv6 has 45 characters: with an address of IPv4 at its end.
		isOther := len(text) > 45 || strings.Count(text, ":") < 2
		if isOther || strings.Trim(text, "0123456789abcdefABCDEF:.") != "" {
			return address, 0, false
		}
		var err error
		address, err = netip.ParseAddr(text)
		if err != nil {
			return address, 0, false
		}
	}
	bits = address.BitLen()
	if !isNetwork {
		return address, bits, true
	}
	n, err := strconv.Atoi(length)
	if err != nil || n < 0 || n > bits {
		return address, 0, false
	}
	return address, n, true
}

// fourBytes reads an address of IPv4. It reads what netip reads, and refuses what that refuses: a zero before a number,
// as some programs read 010 as 8.
func fourBytes(text string) (address netip.Addr, ok bool) {
	var bytes [4]byte
	dots := 0
	number := 0
	digits := 0 // of the number
	for i := range len(text) {
		char := text[i]
		isDigit := '0' <= char && char <= '9'
		switch {
		case isDigit && number < 100 && (digits == 0 || number > 0): // no leading zero
			number = 10*number + int(char-'0')
			digits++
		case char == '.' && digits > 0 && number < 256 && dots < 3:
			bytes[dots] = byte(number)
			dots++
			number = 0
			digits = 0
		default:
			return address, false
		}
	}
	bytes[3] = byte(number)
	return netip.AddrFrom4(bytes), dots == 3 && digits > 0 && number < 256
}

package document

import (
	"net/netip"
	"regexp"
	"strings"
	"unicode"

	"github.com/headgate/headgate/internal/plans"
)

// The forms in which people write addresses, and package keyfuncs never does.
var (
	leadingZeros   = regexp.MustCompile(`^0*(\d{1,3})\.0*(\d{1,3})\.0*(\d{1,3})\.0*(\d{1,3})$`)
	partOfAddress  = regexp.MustCompile(`^\d{1,3}(\.\d{1,3}){1,2}\.?$`)
	wildcard       = regexp.MustCompile(`^(\d{1,3}\.){1,3}([*xX]\.){0,2}[*xX]$|^[0-9a-fA-F:]*:\*$`)
	rangeOfAddress = regexp.MustCompile(`^[0-9.]*\.\d+ *(-|–|to|\.\.+) *[0-9.]*\d$|^[0-9a-fA-F:]*:[0-9a-fA-F:]* *[-–] *[0-9a-fA-F:]*:[0-9a-fA-F:]*$`)
	separators     = regexp.MustCompile(`[,;|\s]+`)
)

// invisible are characters that no one sees, and that come along when a text is copied: zero-width blanks, joiners of words,
// marks of the byte order and of hyphens.
const invisible = "\u00ad\u180e\u200b\u2060\ufeff"

// neverApplies returns what to write instead of a key or a prefix that no key is, or that is one of other keys, too, as far as
// its form tells. It is "" if there is nothing to say, and never repeats the text.
func neverApplies(kind, text string) string {
	bare := strings.TrimFunc(text, func(c rune) bool { return unicode.IsSpace(c) || strings.ContainsRune("\"'`<>", c) })
	switch {
	case strings.ContainsAny(text, invisible):
		return "it has a character that is invisible, such as a blank without width: write it anew"
	case strings.TrimFunc(text, unicode.IsSpace) != text:
		return "it begins or ends with a blank, as no key of a header does: remove it"
	case bare != text && isAddress(bare):
		return "it has marks around an address: write the address alone"
	case strings.Contains(text, "://"):
		return "" // a tenant may be a URL
	}
	hint := noAddress(text)
	if hint != "" {
		return hint
	}
	if kind == "prefix" {
		return prefixOfMore(text)
	}
	if partOfAddress.MatchString(text) {
		return "it is the beginning of an address, and no key: write prefix: with a dot at the end, or network: with its length"
	}
	return taggedNetwork(text)
}

// noAddress is neverApplies for what is meant as addresses.
func noAddress(text string) string {
	address, mask, _ := strings.Cut(text, "/")
	switch {
	case wildcard.MatchString(text):
		return "no key has wildcards: write network: with the length, such as 203.0.113.0/24"
	case rangeOfAddress.MatchString(text):
		return "no key is a range of addresses: write network: for each network in it"
	case isAddress(address) && isAddress(mask):
		return "no key has a mask: write network: with the length, such as 203.0.113.0/24"
	case isAddress(address) && mask == "" && address != text:
		return "it is an address with a slash: write the address alone"
	case areAddresses(separators.Split(text, -1)):
		return "no key is a list of addresses: write an override for each"
	case hasPort(text):
		return "keys of addresses have no port: write the address alone"
	case strings.HasPrefix(text, "[") && isAddress(strings.Trim(text, "[]")):
		return "keys of addresses have no brackets: write the network of 64 bits, such as 2001:db8:1:2::/64"
	case strings.Contains(text, "%") && isAddress(text[:strings.Index(text, "%")]):
		return "keys of addresses have no zone: write the network of 64 bits, such as 2001:db8:1:2::/64"
	case isAddress(strings.TrimSuffix(text, ".")) && strings.HasSuffix(text, "."):
		return "it is an address with a dot at its end: write the address alone"
	}
	parts := leadingZeros.FindStringSubmatch(address)
	switch {
	case parts == nil || isAddress(address):
		return ""
	case isAddress(strings.Join(parts[1:], ".")):
		return "keys of addresses have no leading zeros: write the address without them"
	}
	return "it looks like an address, but a part of it is above 255"
}

// prefixOfMore is neverApplies for a prefix of the addresses that are meant, and of others.
func prefixOfMore(text string) string {
	switch {
	case isAddress(text) && strings.Contains(text, "."):
		return "it is a whole address, and the prefix of others, too, as 203.0.113.1 is of 203.0.113.10: write key:"
	case partOfAddress.MatchString(text) && !strings.HasSuffix(text, "."):
		return "it is the prefix of more networks, as 203.0.11 is of 203.0.110 to 203.0.119: end it with a dot, or write network:"
	case strings.Count(text, ":") > 0 && !strings.HasSuffix(text, ":") && beginsIPv6(text):
		return "it is the prefix of more networks, as 2001:db8:1 is of 2001:db8:10: write network:"
	}
	return ""
}

// taggedNetwork is neverApplies for a network behind a tag: a key with a tag is in no network.
func taggedNetwork(text string) string {
	tag, network, found := strings.Cut(text, ":")
	prefix, err := netip.ParsePrefix(network)
	if !found || err != nil || strings.Contains(tag, ".") || isHexadecimal(tag) {
		return ""
	}
	if prefix.Addr().Is4() || prefix.Bits() != 64 || prefix.Masked().String() != network {
		return "no key with a tag is such a network: write prefix: with the tag and the beginning of the addresses, " +
			"or let the program count addresses without a tag"
	}
	return ""
}

func isAddress(text string) bool {
	_, err := netip.ParseAddr(text)
	return err == nil
}

func areAddresses(parts []string) bool {
	for _, part := range parts {
		_, _, ok := plans.Address(part)
		if !ok {
			return false
		}
	}
	return len(parts) > 1
}

// hasPort reports whether a text is an address and a port: of IPv6, with brackets.
func hasPort(text string) bool {
	_, err := netip.ParseAddrPort(text)
	return err == nil
}

// beginsIPv6 reports whether a text may be the beginning of a public or a local address of IPv6, and is no date or number.
func beginsIPv6(text string) bool {
	first, _, _ := strings.Cut(text, ":")
	if strings.Count(text, ":") < 2 && strings.Trim(text, "0123456789:") == "" {
		return false
	}
	public := len(first) == 4 && strings.ContainsAny(first[:1], "23") || strings.HasPrefix(first, "fd") || strings.HasPrefix(first, "fe80")
	return public && isHexadecimal(strings.ReplaceAll(text, ":", "")) && isAddress(text+"::")
}

func isHexadecimal(text string) bool { return strings.Trim(text, "0123456789abcdefABCDEF") == "" }

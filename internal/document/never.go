package document

import (
	"net/netip"
	"regexp"
	"strings"

	"github.com/headgate/headgate/internal/plans"
)

// A form is one in which people write addresses, and in which no key of package keyfuncs is, with what to write instead.
type form struct {
	pattern *regexp.Regexp
	hint    string
}

// newForm returns a form whose pattern has ADDRESS, IPV4 and IPV6 for what looks like one.
func newForm(pattern, hint string) form {
	const (
		ipv4 = `\d{1,3}(?:\.\d{1,3}){3}`
		ipv6 = `[0-9a-fA-F]*:[0-9a-fA-F]*:[0-9a-fA-F:.]*`
	)
	names := strings.NewReplacer("ADDRESS", "(?:"+ipv4+"|"+ipv6+")", "IPV4", ipv4, "IPV6", ipv6)
	return form{regexp.MustCompile(names.Replace(pattern)), hint}
}

var (
	forms = []form{
		newForm("[\u00ad\u180e\u200b\u2060\ufeff]", "it has a character that is invisible, such as a blank without width: write it anew"),
		newForm(`^[\s\pZ]|[\s\pZ]$`, "it begins or ends with a blank, as no key of a header does: remove it"),
		newForm("^[\"'`<]ADDRESS[\"'`>]$", "it has marks around an address: write the address alone"),
		newForm(`^(\d{1,3}\.){1,3}([*xX]\.){0,2}[*xX]$|^[0-9a-fA-F:]*:\*$`,
			"no key has wildcards: write network: with the length, such as 203.0.113.0/24"),
		newForm(`^IPV4 *(-|–|to|\.\.+) *[\d.]*\d$|^IPV6 *[-–] *IPV6$`, "no key is a range of addresses: write network: for each network in it"),
		newForm(`^ADDRESS/ADDRESS$`, "no key has a mask: write network: with the length, such as 203.0.113.0/24"),
		newForm(`^ADDRESS/$`, "it is an address with a slash: write the address alone"),
		newForm(`^ADDRESS(/\d+)?([,;|\s]+ADDRESS(/\d+)?)+$`, "no key is a list of addresses: write an override for each"),
		newForm(`^(IPV4|\[IPV6\]):\d+$`, "keys of addresses have no port: write the address alone"),
		newForm(`^\[IPV6\]$`, "keys of addresses have no brackets: write the network of 64 bits, such as 2001:db8:1:2::/64"),
		newForm(`^IPV6%`, "keys of addresses have no zone: write the network of 64 bits, such as 2001:db8:1:2::/64"),
		newForm(`^IPV4\.$`, "it is an address with a dot at its end: write the address alone"),
		newForm(`^(0\d+(\.\d+){3}|\d+\.0\d+(\.\d+){2}|(\d+\.){2}0\d+\.\d+|(\d+\.){3}0\d+)(/\d+)?$`,
			"keys of addresses have no leading zeros: write the address without them"),
		newForm(`^IPV4(/\d+)?$`, "it looks like an address or a network, but a number in it is too large"),
	}
	tagged = newForm(`^[^:.]*[^:.0-9a-fA-F][^:.]*:(ADDRESS/\d+)$`, "no key with a tag is such a network: write prefix: with the tag and "+
		"the beginning of the addresses, or let the program count addresses without a tag")
	beginning = newForm(`^\d{1,3}(\.\d{1,3}){1,2}\.?$`, "it is the beginning of an address, and no key: write prefix: with a dot at the end, "+
		"or network: with its length")
	moreOfIPv4 = newForm(`^\d{1,3}(\.\d{1,3})?\.([1-9]|1\d|2[0-5])$`, "it is the prefix of more networks, as 203.0.11 is of 203.0.110 to 203.0.119: "+
		"end it with a dot, or write network:")
	moreOfIPv6 = newForm(`^([23][0-9a-f]{3}|f[de][0-9a-f]{2})(:[0-9a-f]{1,4}){1,6}$`, "it is the prefix of more networks, as 2001:db8:1 is "+
		"of 2001:db8:10: write network:")
	formsOf = map[string][]form{
		"key": {beginning, tagged}, "network": {beginning, tagged}, "prefix": {moreOfIPv4, moreOfIPv6, tagged},
	}
	dated = regexp.MustCompile(`^\d+:\d+$`) // a date or numbers, rather than an address
)

// neverApplies returns what to write instead of a key or a prefix that no key of an address is, or that is one of other keys,
// too, as far as its form tells. It is "" if there is nothing to say, and never repeats the text.
func neverApplies(kind, text string) string {
	_, _, isAddress := plans.Address(text)
	switch {
	case isAddress && kind == "prefix" && strings.Contains(text, "."):
		return "it is a whole address, and the prefix of others, too, as 203.0.113.1 is of 203.0.113.10: write key:"
	case isAddress:
		return ""
	}
	for _, form := range forms {
		if form.pattern.MatchString(text) {
			return form.hint
		}
	}
	for _, form := range formsOf[kind] {
		found := form.pattern.FindStringSubmatch(text)
		if found != nil && !dated.MatchString(text) && !isNetworkOf64Bits(found[len(found)-1]) {
			return form.hint
		}
	}
	return ""
}

// isNetworkOf64Bits reports whether a text is one as package keyfuncs makes them.
func isNetworkOf64Bits(text string) bool {
	prefix, err := netip.ParsePrefix(text)
	return err == nil && prefix.Addr().Is6() && prefix.Bits() == 64 && prefix.Masked().String() == text
}

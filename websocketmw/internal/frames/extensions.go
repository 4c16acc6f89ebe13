package frames

import "strings"

// Extensions are those that the server agreed to in its 101.
type Extensions uint32

const (
	extDeflate Extensions = 1 << iota // permessage-deflate (RFC 7692)
	extOther                          // any other
)

// rsv returns the reserved bits that a frame may have. What extensions other than
// permessage-deflate do with them is not known.
func (e Extensions) rsv(op byte) byte {
	switch {
	case e&extOther != 0:
		return rsvBits
	case e&extDeflate != 0 && op != opContinuation && op&opControl == 0:
		return rsv1Bit
	}
	return 0
}

// ExtensionsOf returns the extensions in the values of Sec-WebSocket-Extensions.
func ExtensionsOf(values ...string) (e Extensions) {
	for _, v := range values {
		for item := range strings.SplitSeq(v, ",") {
			name, _, _ := strings.Cut(item, ";")
			switch name = strings.Trim(name, " \t"); {
			case strings.EqualFold(name, "permessage-deflate"):
				e |= extDeflate
			case name != "":
				e |= extOther
			}
		}
	}
	return e
}

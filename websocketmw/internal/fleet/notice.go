// What guards say to each other, as JSON. All versions that run at a time must read it.

package fleet

// What guards are asked for.
const (
	doList  = "list"
	doClose = "close"
	doOffer = "offer" // the oldest socket, if it may be evicted
	doEvict = "evict" // the one that was offered
)

// An order is the text of a notice.
type order struct {
	Do     string `json:"do"`
	Code   int    `json:"code,omitempty"`
	Reason string `json:"reason,omitempty"`
	Evicts offer  `json:"socket,omitzero"`
}

// An answer is what a guard says to a notice.
type answer struct {
	Server string   `json:"server"`
	Open   int      `json:"open"`
	Peers  []listed `json:"peers,omitempty"`
	Oldest offer    `json:"oldest,omitzero"`
	Done   bool     `json:"done,omitempty"` // the socket that was to be evicted has given up its slot, or has ended
}

// A listed socket is one in an answer.
type listed struct {
	Age int64 `json:"age"` // in milliseconds, when the notice was announced
}

// An offer is a socket that may be evicted: the oldest of a guard. The zero offer is none.
type offer struct {
	Guard  string `json:"guard"`
	Number int64  `json:"number"`
	Age    int64  `json:"age"` // in microseconds, when the notice was announced: the clocks of servers differ
}

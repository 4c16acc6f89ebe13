package limits

import "github.com/headgate/headgate/internal/old/core"

// A Program describes the stores of a program and the limits that it uses, as far as they decide
// which documents its book accepts. The zero Program accepts all that [Parse] accepts.
type Program struct {
	Store   string   `json:"store,omitempty"`    // its kind, see [store.KindOf]; empty: any
	NoSlots bool     `json:"no_slots,omitempty"` // Open was given no store for slots
	Limits  []string `json:"limits,omitempty"`   // by name, that a document must have
	Slots   []string `json:"slots,omitempty"`
}

// Check returns why a book of that program would not take the document, as [Faults], or nil. It
// decides by the code of [Open]. The store is of the same kind as the program's, and is not
// called. A nil store accepts everything. For the changes, use [Compare].
func (d *Document) Check(p Program, limits core.Store) error {
	b := &Book{store: limits, noSlots: p.NoSlots, needs: p}
	if limits == nil {
		b.store = paper{}
	}
	_, err := b.edition(d, nil)
	return err
}

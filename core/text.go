package core

import (
	"fmt"
	"strconv"

	"github.com/headgate/headgate/internal/step"
)

// String returns the text, also of a policy that is not valid, after its name if it has one.
func (p Policy) String() string {
	if p.name == "" {
		return p.numbers.String()
	}
	return strconv.Quote(p.name) + ": " + p.numbers.String()
}

// MarshalText implements [encoding.TextMarshaler]: the text without the name.
func (p Policy) MarshalText() ([]byte, error) {
	if err := p.Validate(); err != nil {
		return nil, err
	}
	return []byte(p.numbers.String()), nil
}

// UnmarshalText implements [encoding.TextUnmarshaler]. An error is an [ErrInvalid] that says what is wrong.
func (p *Policy) UnmarshalText(text []byte) error {
	numbers, err := step.Parse(string(text))
	if err != nil {
		return &invalid{fmt.Errorf("headgate: policy %.64q: %w", text, err)}
	}
	*p = Policy{numbers: numbers}
	return nil
}

// The faults of a Config, collected. They touch nothing else.

package websocketmw

import (
	"fmt"

	"github.com/headgate/headgate/nethttp"
)

// A ConfigError is one error in a Config. [New] joins all of them; errors.As finds the
// first.
type ConfigError = nethttp.ConfigError

// faults collects the errors in a Config.
type faults []error

func (f *faults) add(err error, field string, args ...any) {
	*f = append(*f, &ConfigError{Field: fmt.Sprintf(field, args...), Err: err})
}

package nethttp

import (
	"net/http"

	"github.com/headgate/headgate/internal/engine"
)

// The names in this file are sealed: they have internal types, so only packages of headgate can use them.

// Refuse answers a request that the engine has refused. It is for package websocketmw.
func Refuse(
	w http.ResponseWriter, r *http.Request, admission *engine.Admission,
	onRefused func(http.ResponseWriter, *http.Request, *Verdict),
) {
	refuse(w, r, admission, nil, nil, onRefused)
}

// Document returns the problem document of a refusal. It is for headgated.
func Document(admission *engine.Admission) []byte { return documentOf(admission, nil).Body }

// Texts returns the values of RateLimit-Policy and RateLimit, or "" for one that is not to be there. It is for
// headgated.
func Texts(admission *engine.Admission) (policies, states string) {
	page := takePage()
	defer pages.Put(page)
	return page.texts(admission)
}

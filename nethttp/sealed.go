package nethttp

import (
	"net/http"

	"github.com/headgate/headgate/internal/engine"
)

// The names in this file are sealed: they have internal types, so only packages of headgate can use them.

// Refuse answers a request that the engine has refused. It is for package websocketmw.
func Refuse(w http.ResponseWriter, r *http.Request, a *engine.Admission, onRefused func(http.ResponseWriter, *http.Request, *Verdict)) {
	refuse(w, r, a, nil, nil, onRefused)
}

// Document returns the problem document of a refusal. It is for headgated.
func Document(a *engine.Admission) []byte { return documentOf(a, nil).Body }

// Texts returns the values of RateLimit-Policy and RateLimit, or "" for one that is not to be there. It is for
// headgated.
func Texts(a *engine.Admission) (policies, states string) {
	p := takePage()
	defer pages.Put(p)
	return p.texts(a)
}

// Package store is the contract between package core and the stores that keep the state of limits.
//
// A store answers questions, all by one method. A layer embeds the store below it, and sees every kind of question in
// its Ask. The [Question] has room for its answer. A layer passes it on, and may read the answer when the store below
// has returned. It may ask it again, or ask another question with other charges.
//
// A store prepares each [Limiter] once, before it is asked about it. It keeps its data about a limiter with the
// limiter, in a [Place] of its own ([Limiter.Keep], [Limiter.Kept]). A layer that keeps nothing has no Prepare of its
// own.
//
// The function [step.Decide] has the order of a decision. A store finds the cells of a question, passes them to Decide,
// and saves the changed ones, in one atomic action. It reads the instant from its own clock, when nobody else can
// change the cells any more. Package storetest tests all this.
//
// Package core asks a store for its [Observer] once for each limiter and for each Slots. A layer passes the Observer of
// the store below on, or returns one of its own.
package store

; Direction. Sums and maxima of expressions that rise rise; a product rises with a factor while the
; others are not negative and falls with it while their product is not positive; division by a
; positive constant, rounded down or up, and rounding up to a multiple rise with what is divided.
; x and y are an expression at a smaller and at a greater value of the symbol.
; Used: intervals.direction, and for the monotony of rounding wherever sizes are rounded.

(push 1) ; sum
(declare-const x Int) (declare-const y Int) (declare-const x2 Int) (declare-const y2 Int)
(assert (! (<= x y) :named first_rises))
(assert (! (<= x2 y2) :named second_rises))
(assert (not (<= (+ x x2) (+ y y2))))
(check-sat)
(pop 1)

(push 1) ; maximum
(declare-const x Int) (declare-const y Int) (declare-const x2 Int) (declare-const y2 Int)
(assert (! (<= x y) :named first_rises))
(assert (! (<= x2 y2) :named second_rises))
(assert (not (<= (later x x2) (later y y2))))
(check-sat)
(pop 1)

(push 1) ; product, the other factors together not negative
(declare-const x Int) (declare-const y Int) (declare-const others Int)
(assert (! (<= x y) :named rises))
(assert (! (<= 0 others) :named sign))
(assert (not (<= (* x others) (* y others))))
(check-sat)
(pop 1)

(push 1) ; product, the other factors together not positive
(declare-const x Int) (declare-const y Int) (declare-const others Int)
(assert (! (<= x y) :named rises))
(assert (! (<= others 0) :named sign))
(assert (not (>= (* x others) (* y others))))
(check-sat)
(pop 1)

(push 1) ; product of several factors that change: one after the other, each step as above
(declare-const x Int) (declare-const y Int) (declare-const x2 Int) (declare-const y2 Int)
(assert (! (<= (* x x2) (* y x2)) :named first_factor))
(assert (! (<= (* y x2) (* y y2)) :named second_factor))
(assert (not (<= (* x x2) (* y y2))))
(check-sat)
(pop 1)

(push 1) ; the sign of a product: factors that keep their sign, two negative ones cancel
(declare-const x Int) (declare-const y Int)
(assert (! (<= x 0) :named first_sign))
(assert (! (<= y 0) :named second_sign))
(assert (not (<= 0 (* x y))))
(check-sat)
(pop 1)

(push 1) ; division, rounded down: p and q are the quotients (quotient.smt2)
(declare-const x Int) (declare-const y Int) (declare-const n Int)
(declare-const p Int) (declare-const q Int)
(assert (! (<= x y) :named rises))
(assert (! (<= 0 (- x (* n p))) :named p_is_below))
(assert (! (< (- y (* n q)) n) :named q_is_the_quotient))
(assert (! (< 0 n) :named positive))
(assert (not (<= p q)))
(check-sat)
(pop 1)

(push 1) ; division, rounded up
(declare-const x Int) (declare-const y Int) (declare-const n Int)
(declare-const p Int) (declare-const q Int)
(assert (! (<= x y) :named rises))
(assert (! (< (- (* n p) x) n) :named p_is_the_quotient))
(assert (! (<= 0 (- (* n q) y)) :named q_is_above))
(assert (! (< 0 n) :named positive))
(assert (not (<= p q)))
(check-sat)
(pop 1)

(push 1) ; rounding up: n times the quotient
(declare-const p Int) (declare-const q Int) (declare-const n Int)
(assert (! (<= p q) :named quotient_rises))
(assert (! (< 0 n) :named positive))
(assert (not (<= (* n p) (* n q))))
(check-sat)
(pop 1)

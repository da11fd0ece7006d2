; Intervals. If x lies in [a, b] and y in [c, d], then x + y lies in [a + c, b + d], the greater of both
; in [max(a, c), max(b, d)], and x y between the least and the greatest of ac, ad, bc, bd.
; Quotients: by the monotony in direction.smt2.
; Used: intervals.bounds, which settles that sizes are not negative and picks the numbers of (B).

(push 1) ; sum
(declare-const x Int) (declare-const y Int) (declare-const b Int) (declare-const d Int)
(assert (! (<= x b) :named first))
(assert (! (<= y d) :named second))
(assert (not (<= (+ x y) (+ b d))))
(check-sat)
(pop 1)

(push 1) ; maximum, from above and from below
(declare-const x Int) (declare-const y Int)
(declare-const a Int) (declare-const b Int) (declare-const c Int) (declare-const d Int)
(assert (! (<= a x) :named first_above))
(assert (! (<= x b) :named first_below))
(assert (! (<= c y) :named second_above))
(assert (! (<= y d) :named second_below))
(assert (not (<= (later a c) (later x y) (later b d))))
(check-sat)
(pop 1)

(push 1) ; a product with one factor fixed lies between those at the ends of the other
(declare-const x Int) (declare-const y Int) (declare-const a Int) (declare-const b Int)
(assert (! (<= a x) :named above))
(assert (! (<= x b) :named below))
(assert (not (<= (* x y) (later (* a y) (* b y)))))
(check-sat)
(pop 1)

(push 1) ; so a product is at most the greatest of the four at the ends: ay and by, by the same step
(declare-const xy Int) (declare-const ay Int) (declare-const by Int)
(declare-const ac Int) (declare-const ad Int) (declare-const bc Int) (declare-const bd Int)
(assert (! (<= xy (later ay by)) :named first_factor))
(assert (! (<= ay (later ac ad)) :named second_at_a))
(assert (! (<= by (later bc bd)) :named second_at_b))
(assert (not (<= xy (later (later ac ad) (later bc bd)))))
(check-sat)
(pop 1)
